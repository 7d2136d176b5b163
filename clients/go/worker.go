package horarium

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	leaseMin         = time.Second
	workerBackoffMax = 30 * time.Second
	errorBytesMax    = 8_000
	claimMax         = 1_000 // runs that one claim may ask for
	linesMax         = 1_000 // lines in one request
	// pauseMax is the longest pause that a failure may ask for.
	pauseMax = 24 * time.Hour
	// abortWait is how long work that outlived the grace of a stop gets to react to its context.
	abortWait = 5 * time.Second
	// handOver is how long after its claim an answer may be on its way that must not be cut off.
	handOver = 500 * time.Millisecond
)

// Run is a claimed run, as its handler sees it.
type Run struct {
	RunView
	client *Client
	token  int64
	lease  time.Duration
	cancel context.CancelCauseFunc

	mutex sync.Mutex
	lost  bool
}

// Decode reads the payload into the value that target points to.
func (r *Run) Decode(target any) error { return json.Unmarshal(r.Payload, target) }

// Report keeps progress with the run. (The lease is renewed by itself.)
func (r *Run) Report(ctx context.Context, progress any) error { return r.beat(ctx, progress) }

// Log adds lines to the run's log.
func (r *Run) Log(ctx context.Context, lines ...string) error {
	for part := range slices.Chunk(lines, linesMax) {
		request := LogRequest{Token: r.token, Lines: make([]any, len(part))}
		for i, line := range part {
			request.Lines[i] = line
		}
		if err := r.client.AddLines(ctx, r.ID, request); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) beat(ctx context.Context, progress any) error {
	pulse, err := r.client.Heartbeat(ctx, r.ID, HeartbeatRequest{Token: r.token, Progress: progress})
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
		r.lose()
	}
	if err == nil && pulse.CancelRequested {
		r.cancel(errors.New("a cancel was asked"))
	}
	return err
}

func (r *Run) lose() {
	r.mutex.Lock()
	r.lost = true
	r.mutex.Unlock()
	r.cancel(ErrLeaseLost)
}

func (r *Run) isLost() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.lost
}

// Handler performs a run: what it returns is the result (JSON), an error is a failure; RetryAfter and Discard say more. ctx is
// done when a cancel was asked, the lease is lost (context.Cause tells), or the worker stops and can't wait.
type Handler func(ctx context.Context, run *Run) (any, error)

// WorkerOptions may be left empty.
type WorkerOptions struct {
	// Concurrency is how many runs are performed at one time: 8.
	Concurrency int
	// Name is host and process.
	Name string
	// Wait is how long one claim waits: 20 s.
	Wait time.Duration
	// Grace is how long a stop waits for runs under way: 30 s.
	Grace time.Duration
	// Logf is told of what can't be helped: outages, lost leases, refused reports. log.Printf if nil.
	Logf func(format string, values ...any)
}

// Worker performs runs of queues beside one another, as docs/worker-protocol.md asks.
type Worker struct {
	client  *Client
	queues  map[string]Handler
	options WorkerOptions
	free    chan struct{}
	running sync.WaitGroup
}

// NewWorker makes a worker of these queues.
func NewWorker(client *Client, queues map[string]Handler, options WorkerOptions) (*Worker, error) {
	if len(queues) == 0 {
		return nil, errors.New("queues: name at least one, with its handler")
	}
	if options.Concurrency <= 0 {
		options.Concurrency = 8
	}
	if options.Name == "" {
		host, _ := os.Hostname()
		options.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	if options.Wait == 0 {
		options.Wait = 20 * time.Second
	}
	if options.Grace == 0 {
		options.Grace = 30 * time.Second
	}
	if options.Logf == nil {
		options.Logf = log.Printf
	}
	return &Worker{client: client, queues: queues, options: options, free: make(chan struct{}, options.Concurrency)}, nil
}

// Run claims and performs until ctx is done; then it finishes what is under way, and returns nil. It returns what the
// server refuses for good, such as a wrong key.
func (w *Worker) Run(ctx context.Context) error {
	working, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	err := w.claimLoop(ctx, working)
	done := make(chan struct{})
	go func() { w.running.Wait(); close(done) }()
	for _, step := range []time.Duration{w.options.Grace, abortWait} {
		select {
		case <-done:
			return err
		case <-time.After(step):
			abort(errors.New("the worker stops"))
		}
	}
	w.options.Logf("horarium: runs did not stop; they are given to other workers when their leases end")
	return err
}

func (w *Worker) claimLoop(ctx, working context.Context) error {
	request := ClaimRequest{WaitSeconds: Ptr(w.options.Wait.Seconds()), Worker: &w.options.Name}
	for queue := range w.queues {
		request.Queues = append(request.Queues, queue)
	}
	failures := 0
	for ctx.Err() == nil {
		free := w.acquire(ctx)
		if free == 0 {
			return nil
		}
		request.Limit = &free
		views, err := w.claim(ctx, request)
		for range free - len(views) {
			<-w.free
		}
		for _, view := range views {
			w.begin(working, view)
		}
		var refused *Error
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &refused) && errors.Is(err, ErrUnavailable):
			failures++
			if failures == 1 {
				w.options.Logf("horarium: claim: %v; trying again", err)
			}
			_ = sleep(ctx, max(refused.RetryAfter, backoff(failures, workerBackoffMax)))
		default:
			return err
		}
	}
	return nil
}

// claim asks until ctx is done; a claim that was sent just then is answered first: with it, its runs would be lost for a lease.
func (w *Worker) claim(ctx context.Context, request ClaimRequest) ([]RunView, error) {
	waiting, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	asked := time.Now()
	defer context.AfterFunc(ctx, func() { _ = sleep(waiting, time.Until(asked.Add(handOver))); cut() })()
	return w.client.Claim(waiting, request)
}

// acquire waits for a free place, and takes those that are free, as many as one claim may ask for. 0: ctx is done.
func (w *Worker) acquire(ctx context.Context) int {
	select {
	case w.free <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for count := 1; count < claimMax; count++ {
		select {
		case w.free <- struct{}{}:
		default:
			return count
		}
	}
	return claimMax
}

func (w *Worker) begin(working context.Context, view RunView) {
	run := &Run{RunView: view, client: w.client, token: view.Lease.Token, lease: leaseMin}
	if view.StartedAt != nil {
		run.lease = max(view.Lease.ExpiresAt.Sub(*view.StartedAt), leaseMin)
	}
	ctx, cancel := context.WithCancelCause(working)
	run.cancel = cancel
	w.running.Add(1)
	go func() {
		beating, stop := context.WithCancel(context.WithoutCancel(ctx))
		kept := make(chan struct{})
		go func() { w.keep(beating, run); close(kept) }()
		var result any
		err := errors.New("its handler ended its goroutine")
		defer func() { // also then
			w.report(beating, run, result, err)
			stop()
			<-kept
			cancel(nil)
			<-w.free
			w.running.Done()
		}()
		result, err = w.attempt(ctx, run)
	}()
}

// keep sends heartbeats, every third of the lease; one that fails is repeated within a second, while the lease lasts.
func (w *Worker) keep(ctx context.Context, run *Run) {
	pace := run.lease / 3
	ends, wait := time.Now().Add(run.lease), pace
	for sleep(ctx, wait) == nil && !run.isLost() {
		asked := time.Now()
		within, cancel := context.WithTimeout(ctx, pace)
		err := run.beat(within, nil)
		cancel()
		switch {
		case err == nil:
			ends, wait = asked.Add(run.lease), pace
		case ctx.Err() != nil || run.isLost():
			return
		case time.Now().After(ends):
			run.lose()
			w.options.Logf("horarium: run %s: its lease ran out: %v", run.ID, err)
			return
		default:
			wait = min(pace, time.Second/2)
		}
	}
}

func (w *Worker) attempt(ctx context.Context, run *Run) (result any, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	handler := w.queues[run.Queue]
	if handler == nil {
		handler = w.queues[strings.TrimPrefix(run.Queue, "pull/")]
	}
	if handler == nil {
		return nil, Discard(fmt.Errorf("this worker has no handler for %s", run.Queue))
	}
	return handler(ctx, run)
}

// report sends the end of the run until an answer comes, or the lease is lost.
func (w *Worker) report(ctx context.Context, run *Run, result any, failure error) {
	send := func() error {
		if failure == nil {
			_, err := w.client.Complete(ctx, run.ID, CompleteRequest{Token: run.token, Result: result})
			return err
		}
		_, err := w.client.Fail(ctx, run.ID, failed(run.token, failure))
		return err
	}
	for failures := 1; !run.isLost(); failures++ {
		err := send()
		var refused *Error
		switch {
		case err == nil, errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
			return
		case errors.As(err, &refused) && errors.Is(err, ErrUnavailable):
			_ = sleep(ctx, max(refused.RetryAfter, backoff(failures, workerBackoffMax)))
		case failure == nil: // such as a result that is no JSON, or is too large
			failure = Discard(fmt.Errorf("its result was refused: %w", err))
		default:
			w.options.Logf("horarium: run %s: its end was refused: %v", run.ID, err)
			return
		}
	}
}

func failed(token int64, failure error) FailRequest {
	text := failure.Error()
	if len(text) > errorBytesMax {
		text = strings.ToValidUTF8(text[:errorBytesMax], "")
	}
	request := FailRequest{Token: token, Error: text}
	var discard *DiscardError
	if errors.As(failure, &discard) {
		request.Retryable = Ptr(false)
	}
	var retry *RetryError
	if errors.As(failure, &retry) {
		request.RetryAfterSeconds = Ptr(min(max(retry.After, 0), pauseMax).Seconds())
	}
	return request
}
