package horarium

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The tests ask the server of HORARIUM_URL, with the key HORARIUM_API_KEY.
func server(t *testing.T) (context.Context, *Client) {
	t.Helper()
	client, err := New("", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx, client
}

func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func listed[T any](t *testing.T, items iter.Seq2[T, error]) []T {
	t.Helper()
	var found []T
	for item, err := range items {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, item)
	}
	return found
}

func TestJobs(t *testing.T) {
	ctx, client := server(t)
	trigger := CronTrigger{Type: "cron", Expression: "0 3 * * *", Timezone: Ptr("Europe/Berlin")}
	job := JobDefinition{Name: "go-job", Trigger: trigger, Target: QueuedAt("go-idle"), Labels: map[string]string{"by": "go"}}
	put := must[*JobView](t)(client.Jobs.Put(ctx, job))
	if again := must[*JobView](t)(client.Jobs.Put(ctx, job)); again.Version != put.Version {
		t.Errorf("unchanged content made version %d", again.Version)
	}
	if found := listed(t, client.Jobs.List(ctx, url.Values{"label": {"by=go"}})); len(found) != 1 || found[0].Name != "go-job" {
		t.Errorf("listed: %v", found)
	}
	run := must[*RunView](t)(client.Jobs.Trigger(ctx, "go-job", map[string]int{"n": 1}, "once"))
	if again := must[*RunView](t)(client.Jobs.Trigger(ctx, "go-job", map[string]int{"n": 1}, "once")); again.ID != run.ID {
		t.Error("the same key made two runs")
	}
	if paused := must[*JobView](t)(client.Jobs.Pause(ctx, "go-job", PauseRequest{Reason: Ptr("a test")})); paused.PausedAt == nil {
		t.Error("it is not paused")
	}
	must[*JobView](t)(client.Jobs.Resume(ctx, "go-job"))
	if fires := must[*Fires](t)(client.Jobs.Fires(ctx, "go-job", 3)); len(fires.Fires) != 3 || fires.Fires[0].Before(time.Now()) {
		t.Errorf("fires: %v", fires)
	}
	must[*Fires](t)(client.Preview(ctx, PreviewRequest{Trigger: trigger}))
	if err := client.Jobs.Delete(ctx, "go-job"); err != nil {
		t.Error(err)
	}
}

func TestRuns(t *testing.T) {
	ctx, client := server(t)
	unique := RunOptions{UniqueKey: Ptr("the-go-one")}
	first := must[*RunView](t)(client.Enqueue(ctx, "go-many", 0, unique))
	if again := must[*RunView](t)(client.Enqueue(ctx, "go-many", 0, unique)); again.ID != first.ID {
		t.Error("a unique key made two runs")
	}
	added := must[[]AddedRun](t)(client.EnqueueMany(ctx, "go-many", make([]any, 1250), RunOptions{}))
	if len(added) != 1250 || slices.ContainsFunc(added, func(each AddedRun) bool { return each.Outcome != "created" }) {
		t.Errorf("%d added", len(added))
	}
	if found := listed(t, client.Runs.List(ctx, url.Values{"queue": {"go-many"}})); len(found) != 1251 {
		t.Errorf("%d listed", len(found))
	}
	if cancelled := must[*RunView](t)(client.Runs.Cancel(ctx, first.ID, "no more")); cancelled.State != "cancelled" {
		t.Errorf("it is %s", cancelled.State)
	}
}

func TestErrorsHaveKinds(t *testing.T) {
	ctx, client := server(t)
	_, err := client.Jobs.Get(ctx, "none")
	var problem *Error
	if !errors.Is(err, ErrNotFound) || !errors.As(err, &problem) || problem.Code != "not_found" {
		t.Errorf("%v", err)
	}
	if _, err := client.Enqueue(ctx, "no queue", nil, RunOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	stranger := must[*Client](t)(New("", "a wrong key, of some length"))
	if _, err := stranger.Jobs.Get(ctx, "x"); !errors.Is(err, ErrForbidden) {
		t.Errorf("%v", err)
	}
	run := must[*RunView](t)(client.Enqueue(ctx, "go-errors", nil, RunOptions{}))
	if _, err := client.Complete(ctx, run.ID, CompleteRequest{Token: 1}); !errors.Is(err, ErrConflict) {
		t.Errorf("%v", err)
	}
	nobody := must[*Client](t)(New("http://127.0.0.1:9", ""))
	if _, err := nobody.Jobs.Get(ctx, "x"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if _, err := New("localhost:8080", ""); err == nil {
		t.Error("an address without a scheme was taken")
	}
}

func TestALostAnswerIsAskedForAgainUnderTheSameKey(t *testing.T) {
	var keys []string
	lossy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) == 1 {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte(`{"id": "the run"}`))
	}))
	defer lossy.Close()
	client := must[*Client](t)(New(lossy.URL, ""))
	run := must[*RunView](t)(client.Enqueue(context.Background(), "q", nil, RunOptions{}))
	if run.ID != "the run" || len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("%v %v", run.ID, keys)
	}
}

func TestARedirectIsAnErrorAndNotAnotherRequest(t *testing.T) {
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, "/api/v1/runs", http.StatusMovedPermanently)
			return
		}
		_, _ = w.Write([]byte(`{"items": [], "next_cursor": null}`))
	}))
	defer moved.Close()
	for _, given := range [][]Option{nil, {WithHTTPClient(moved.Client())}} {
		client := must[*Client](t)(New(moved.URL, "", given...))
		run, err := client.Enqueue(context.Background(), "q", nil, RunOptions{})
		if run != nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "/api/v1/runs") {
			t.Errorf("%v %v", run, err)
		}
	}
}

func TestAWorkerMayHaveMorePlacesThanAClaimTakesRuns(t *testing.T) {
	ctx, client := server(t)
	must[*RunView](t)(client.Enqueue(ctx, "go-wide", nil, RunOptions{}))
	ctx, stop := context.WithCancel(ctx)
	handler := func(context.Context, *Run) (any, error) { defer stop(); return nil, nil }
	worker := must[*Worker](t)(NewWorker(client, map[string]Handler{"go-wide": handler}, WorkerOptions{Concurrency: 1_500}))
	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestRunsThatAreOnTheirWayWhenTheWorkerStopsAreNotLost(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	reported := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/claim") {
			reported <- r.URL.Path
			_, _ = w.Write([]byte("{}"))
			return
		}
		stop()
		time.Sleep(10 * time.Millisecond)
		_, _ = w.Write([]byte(`{"runs": [{"id": "r", "queue": "pull/q", "lease": {"token": 7, "expires_at": "2030-01-01T00:00:30Z"}}]}`))
	}))
	defer server.Close()
	client := must[*Client](t)(New(server.URL, ""))
	handler := func(context.Context, *Run) (any, error) { return 1, nil }
	worker := must[*Worker](t)(NewWorker(client, map[string]Handler{"q": handler}, WorkerOptions{}))
	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case path := <-reported:
		if path != "/api/v1/runs/r/complete" {
			t.Error(path)
		}
	default:
		t.Error("it was lost")
	}
}

func TestAFailureIsToldWhateverPauseItAsksFor(t *testing.T) {
	ctx, client := server(t)
	for _, pause := range []time.Duration{7 * 24 * time.Hour, -time.Second} {
		run := must[*RunView](t)(client.Enqueue(ctx, "go-odd", nil, RunOptions{}))
		working, stop := context.WithCancel(ctx)
		worker := must[*Worker](t)(NewWorker(client, map[string]Handler{
			"go-odd": func(context.Context, *Run) (any, error) { stop(); return nil, RetryAfter(errors.New("busy"), pause) },
		}, WorkerOptions{Concurrency: 1}))
		if err := worker.Run(working); err != nil {
			t.Fatal(err)
		}
		history := must[*RunView](t)(client.Runs.Get(ctx, run.ID)).History
		if last := history[len(history)-1]; last.Message != "attempt 1 failed: busy" {
			t.Errorf("%s: %v", pause, history)
		}
		_ = must[*RunView](t)(client.Runs.Cancel(ctx, run.ID, ""))
	}
}

func TestWork(t *testing.T) {
	ctx, client := server(t)
	sum := must[*RunView](t)(client.Enqueue(ctx, "go-sum", []int{1, 2, 3}, RunOptions{}))
	bad := must[*RunView](t)(client.Enqueue(ctx, "go-bad", nil, RunOptions{}))
	torn := must[*RunView](t)(client.Enqueue(ctx, "go-panic", nil, RunOptions{Retry: &Retry{AttemptsMax: Ptr(1)}}))
	gone := must[*RunView](t)(client.Enqueue(ctx, "go-exit", nil, RunOptions{Retry: &Retry{AttemptsMax: Ptr(1)}}))
	ctx, stop := context.WithCancel(ctx)
	var begun atomic.Int32
	last := func() {
		if begun.Add(1) == 4 {
			stop()
		}
	}
	worker := must[*Worker](t)(NewWorker(client, map[string]Handler{
		"go-sum": func(ctx context.Context, run *Run) (any, error) {
			defer last()
			var numbers []int
			if err := run.Decode(&numbers); err != nil {
				return nil, err
			}
			total := 0
			for _, number := range numbers {
				total += number
			}
			return total, run.Log(ctx, slices.Repeat([]string{"begun"}, 1_001)...)
		},
		"go-bad":   func(context.Context, *Run) (any, error) { defer last(); return nil, Discard(errors.New("as asked")) },
		"go-panic": func(context.Context, *Run) (any, error) { defer last(); panic("torn") },
		"go-exit":  func(context.Context, *Run) (any, error) { defer last(); runtime.Goexit(); return nil, nil },
	}, WorkerOptions{Concurrency: 2}))
	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}
	ctx = context.Background()
	if done := must[*RunView](t)(client.Runs.Get(ctx, sum.ID)); string(done.Result) != "6" {
		t.Errorf("%s %s", done.State, done.Result)
	}
	if lines := listed(t, client.Runs.Log(ctx, sum.ID)); len(lines) != 1_001 || lines[0].Text != "begun" {
		t.Errorf("%d lines", len(lines))
	}
	for id, text := range map[string]string{
		bad.ID: "as asked", torn.ID: "panic: torn", gone.ID: "its handler ended its goroutine",
	} {
		if done := must[*RunView](t)(client.Runs.Get(ctx, id)); done.State != "failed" || *done.Error != text {
			t.Errorf("%s %v", done.State, *done.Error)
		}
	}
}
