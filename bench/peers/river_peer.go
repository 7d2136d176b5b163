// River: `river_peer URL COUNT`. No-op jobs, added 1,000 at a time; one process, 100 workers, fetching as fast as it may.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type Noop struct {
	To     string `json:"to"`
	Number int    `json:"number"`
}

func (Noop) Kind() string { return "noop" }

type NoopWorker struct {
	river.WorkerDefaults[Noop]
	left *atomic.Int64
	done chan struct{}
}

func (w *NoopWorker) Work(context.Context, *river.Job[Noop]) error {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	pool, err := pgxpool.New(ctx, os.Args[1])
	must(err)
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	must(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(err)
	worker := &NoopWorker{left: &atomic.Int64{}, done: make(chan struct{})}
	worker.left.Store(int64(count))
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     time.Millisecond,
		FetchPollInterval: 50 * time.Millisecond,
		Logger:            slog.New(slog.DiscardHandler),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
		Workers:           workers,
	})
	must(err)
	added := time.Now()
	for first := 0; first < count; first += 1000 {
		jobs := make([]river.InsertManyParams, 0, 1000)
		for number := first; number < min(first+1000, count); number++ {
			jobs = append(jobs, river.InsertManyParams{Args: Noop{To: "somebody", Number: number}})
		}
		_, err := client.InsertManyFast(ctx, jobs)
		must(err)
	}
	started := time.Now()
	must(client.Start(ctx))
	<-worker.done
	must(client.Stop(ctx))
	ended := time.Now()
	must(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"add": float64(count) / started.Sub(added).Seconds(),
		"run": float64(count) / ended.Sub(started).Seconds(),
	}))
}
