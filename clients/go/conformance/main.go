// Command conformance is the worker of this package, as `horarium conformance worker` asks for it.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"horarium"
)

type asked struct {
	Do                string
	Seconds           float64
	Progress          any
	Result            any
	Error             string
	Retryable         *bool
	RetryAfterSeconds float64 `json:"retry_after_seconds"`
}

func perform(ctx context.Context, run *horarium.Run) (any, error) {
	var asked asked
	if err := run.Decode(&asked); err != nil {
		return nil, horarium.Discard(err)
	}
	if asked.Progress != nil {
		if err := run.Report(ctx, asked.Progress); err != nil {
			return nil, err
		}
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(time.Duration(asked.Seconds * float64(time.Second))):
	}
	if asked.Do == "complete" {
		return asked.Result, nil
	}
	failure := errors.New(asked.Error)
	if asked.Retryable != nil && !*asked.Retryable {
		return nil, horarium.Discard(failure)
	}
	return nil, horarium.RetryAfter(failure, time.Duration(asked.RetryAfterSeconds*float64(time.Second)))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	client, err := horarium.New(os.Getenv("HORARIUM_URL"), os.Getenv("HORARIUM_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	queues := map[string]horarium.Handler{os.Getenv("HORARIUM_QUEUE"): perform}
	slots, err := strconv.Atoi(cmp.Or(os.Getenv("HORARIUM_SLOTS"), "2"))
	if err != nil {
		log.Fatal(err)
	}
	worker, err := horarium.NewWorker(client, queues, horarium.WorkerOptions{Concurrency: slots})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
