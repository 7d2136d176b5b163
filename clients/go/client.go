package horarium

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

const (
	pageSize = 200
	batchMax = 1000
	// pollMargin is how much longer than the long poll itself its answer may take.
	pollMargin = 15 * time.Second
)

// Client is a server's API. It may be shared by goroutines.
type Client struct {
	Jobs *Jobs
	Runs *Runs
	t    *transport
}

// Option changes how a client asks.
type Option func(*options)

type options struct{ client *http.Client }

// WithHTTPClient takes another HTTP client, such as one with a certificate authority of yours. Leave its Timeout out.
func WithHTTPClient(client *http.Client) Option { return func(o *options) { o.client = client } }

// New makes a client. An empty address means HORARIUM_URL, or http://127.0.0.1:8080; an empty key HORARIUM_API_KEY.
func New(address, key string, given ...Option) (*Client, error) {
	if address == "" {
		address = os.Getenv("HORARIUM_URL")
	}
	if address == "" {
		address = "http://127.0.0.1:8080"
	}
	if key == "" {
		key = os.Getenv("HORARIUM_API_KEY")
	}
	var chosen options
	for _, option := range given {
		option(&chosen)
	}
	t, err := newTransport(address, key, chosen.client)
	if err != nil {
		return nil, err
	}
	return &Client{Jobs: &Jobs{t}, Runs: &Runs{t}, t: t}, nil
}

// RunOptions is what a one-off run may have beside its queue and payload: Target and Payload are set by Enqueue.
type RunOptions RunDefinition

// QueuedAt is the target of a run for the workers of a queue.
func QueuedAt(queue string) QueueTarget { return QueueTarget{Type: "queue", Queue: queue} }

// Enqueue adds a run for the workers of this queue: now, At an instant, or after DelaySeconds. With a UniqueKey that a run
// holds already, the answer is that run. A lost answer makes no second run.
func (c *Client) Enqueue(ctx context.Context, queue string, payload any, options RunOptions) (*RunView, error) {
	run := RunDefinition(options)
	run.Target, run.Payload = QueuedAt(queue), payload
	return c.Runs.Add(ctx, run)
}

// EnqueueMany adds many runs, a thousand in one transaction: what became of each, in their order.
func (c *Client) EnqueueMany(ctx context.Context, queue string, payloads []any, options RunOptions) ([]AddedRun, error) {
	var added []AddedRun
	for len(payloads) > 0 {
		part := payloads[:min(len(payloads), batchMax)]
		payloads = payloads[len(part):]
		runs := make([]RunDefinition, len(part))
		for i, payload := range part {
			runs[i] = RunDefinition(options)
			runs[i].Target, runs[i].Payload = QueuedAt(queue), payload
		}
		body := map[string]any{"runs": runs}
		var answer []AddedRun
		if _, err := c.t.call(ctx, "POST", "/runs/batch", asked{body: body, headers: idempotent("")}, &answer); err != nil {
			return added, err
		}
		added = append(added, answer...)
	}
	return added, nil
}

// Preview tells when a trigger would fire, and its rule in words.
func (c *Client) Preview(ctx context.Context, request PreviewRequest) (*Fires, error) {
	return post[Fires](ctx, c.t, "/preview", request)
}

// Claim takes due runs, each with its lease. It is empty where none was due.
func (c *Client) Claim(ctx context.Context, request ClaimRequest) ([]RunView, error) {
	limit := pollMargin
	if request.WaitSeconds != nil {
		limit += seconds(*request.WaitSeconds)
	}
	var batch RunBatch
	_, err := c.t.call(ctx, "POST", "/runs/claim", asked{body: request, timeout: limit, attempts: 1}, &batch)
	return batch.Runs, err
}

// Heartbeat renews the lease. errors.Is(err, ErrLeaseLost): stop the work.
func (c *Client) Heartbeat(ctx context.Context, id string, request HeartbeatRequest) (*PulseView, error) {
	return post[PulseView](ctx, c.t, runPath(id)+"/heartbeat", request)
}

// Complete reports that the work is done.
func (c *Client) Complete(ctx context.Context, id string, request CompleteRequest) (*RunView, error) {
	return post[RunView](ctx, c.t, runPath(id)+"/complete", request)
}

// Fail reports that the attempt failed.
func (c *Client) Fail(ctx context.Context, id string, request FailRequest) (*RunView, error) {
	return post[RunView](ctx, c.t, runPath(id)+"/fail", request)
}

// Settle reports up to 1,000 ends, each judged by itself.
func (c *Client) Settle(ctx context.Context, reports []Report) ([]Settled, error) {
	answer, err := post[[]Settled](ctx, c.t, "/runs/settle", reports)
	if err != nil {
		return nil, err
	}
	return *answer, nil
}

// AddLines adds lines to a claimed run's log.
func (c *Client) AddLines(ctx context.Context, id string, request LogRequest) error {
	_, err := c.t.call(ctx, "POST", runPath(id)+"/log", asked{body: request, once: true}, nil)
	return err
}

// Jobs are the definitions on a server.
type Jobs struct{ t *transport }

// Put defines the job, or brings it to this content; unchanged content changes nothing.
func (j *Jobs) Put(ctx context.Context, job JobDefinition) (*JobView, error) {
	var view JobView
	_, err := j.t.call(ctx, "PUT", jobPath(job.Name), asked{body: job}, &view)
	return orNil(&view, err)
}

// Get shows a job.
func (j *Jobs) Get(ctx context.Context, name string) (*JobView, error) {
	return get[JobView](ctx, j.t, jobPath(name), nil)
}

// List yields jobs by name, page by page. where: label, enabled, prefix, finished.
func (j *Jobs) List(ctx context.Context, where url.Values) iter.Seq2[JobView, error] {
	return pages(ctx, where, func(query url.Values) ([]JobView, *string, error) {
		page, err := get[JobPage](ctx, j.t, "/jobs", query)
		if err != nil {
			return nil, nil, err
		}
		return page.Items, page.NextCursor, nil
	})
}

// Delete deletes a job.
func (j *Jobs) Delete(ctx context.Context, name string) error {
	_, err := j.t.call(ctx, "DELETE", jobPath(name), asked{}, nil)
	return err
}

// Pause stops a job from firing.
func (j *Jobs) Pause(ctx context.Context, name string, request PauseRequest) (*JobView, error) {
	return post[JobView](ctx, j.t, jobPath(name)+"/pause", request)
}

// Resume lets it go on.
func (j *Jobs) Resume(ctx context.Context, name string) (*JobView, error) {
	return post[JobView](ctx, j.t, jobPath(name)+"/resume", struct{}{})
}

// Trigger makes a run now. A lost answer makes no second run; an idempotencyKey extends that over calls of yours.
func (j *Jobs) Trigger(ctx context.Context, name string, payload any, idempotencyKey string) (*RunView, error) {
	var run RunView
	request := asked{body: TriggerRequest{Payload: payload}, headers: idempotent(idempotencyKey)}
	_, err := j.t.call(ctx, "POST", jobPath(name)+"/trigger", request, &run)
	return orNil(&run, err)
}

// Fires tells the next fire times.
func (j *Jobs) Fires(ctx context.Context, name string, count int) (*Fires, error) {
	return get[Fires](ctx, j.t, jobPath(name)+"/fires", url.Values{"count": {strconv.Itoa(count)}})
}

// Runs are what is owed, under way and done on a server.
type Runs struct{ t *transport }

// Add adds a run that belongs to no job, with a target of any type.
func (r *Runs) Add(ctx context.Context, run RunDefinition) (*RunView, error) {
	request := asked{body: run}
	if run.UniqueKey == nil {
		request.headers = idempotent("")
	}
	var view RunView
	_, err := r.t.call(ctx, "POST", "/runs", request, &view)
	return orNil(&view, err)
}

// Get shows a run, with its history.
func (r *Runs) Get(ctx context.Context, id string) (*RunView, error) {
	return get[RunView](ctx, r.t, runPath(id), nil)
}

// List yields runs, the newest fire time first, page by page. where: job, state, queue, since, until.
func (r *Runs) List(ctx context.Context, where url.Values) iter.Seq2[RunView, error] {
	return pages(ctx, where, func(query url.Values) ([]RunView, *string, error) {
		page, err := get[RunPage](ctx, r.t, "/runs", query)
		if err != nil {
			return nil, nil, err
		}
		return page.Items, page.NextCursor, nil
	})
}

// Cancel ends a pending run, and asks the worker of a running one to stop.
func (r *Runs) Cancel(ctx context.Context, id, reason string) (*RunView, error) {
	body := map[string]string{}
	if reason != "" {
		body["reason"] = reason
	}
	return post[RunView](ctx, r.t, runPath(id)+"/cancel", body)
}

// Retry makes a new run for one that failed, was cancelled or was skipped.
func (r *Runs) Retry(ctx context.Context, id string) (*RunView, error) {
	return post[RunView](ctx, r.t, runPath(id)+"/retry", struct{}{})
}

// RetryMany retries those that fit, one bounded batch: call again with its cursor.
func (r *Runs) RetryMany(ctx context.Context, which BulkRequest) (*BulkAnswer, error) {
	return post[BulkAnswer](ctx, r.t, "/runs/retry", which)
}

// Log yields the lines of a run's log up to now.
func (r *Runs) Log(ctx context.Context, id string) iter.Seq2[LineView, error] {
	return func(yield func(LineView, error) bool) {
		query := url.Values{"limit": {"1000"}}
		for {
			page, err := get[LogView](ctx, r.t, runPath(id)+"/log", query)
			if err != nil {
				yield(LineView{}, err)
				return
			}
			for _, line := range page.Items {
				if !yield(line, nil) {
					return
				}
			}
			if len(page.Items) == 0 || page.NextCursor == nil {
				return
			}
			query.Set("after", *page.NextCursor)
		}
	}
}

func pages[T any](ctx context.Context, where url.Values, fetch func(url.Values) ([]T, *string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		for name, values := range where {
			query[name] = values
		}
		for {
			items, next, err := fetch(query)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == nil {
				return
			}
			query.Set("cursor", *next)
		}
	}
}

func get[T any](ctx context.Context, t *transport, path string, query url.Values) (*T, error) {
	var answer T
	_, err := t.call(ctx, "GET", path, asked{query: query}, &answer)
	return orNil(&answer, err)
}

func post[T any](ctx context.Context, t *transport, path string, body any) (*T, error) {
	var answer T
	_, err := t.call(ctx, "POST", path, asked{body: body}, &answer)
	return orNil(&answer, err)
}

func orNil[T any](answer *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func idempotent(key string) map[string]string {
	if key == "" {
		key = newKey()
	}
	return map[string]string{"Idempotency-Key": key}
}

func jobPath(name string) string { return "/jobs/" + url.PathEscape(name) }

func runPath(id string) string { return "/runs/" + url.PathEscape(id) }

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
