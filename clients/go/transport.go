package horarium

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	attemptsMax   = 4
	timeout       = 30 * time.Second
	backoffMin    = 100 * time.Millisecond
	backoffMax    = 5 * time.Second
	retryAfterMax = 30 * time.Second
	answerMax     = 128 << 20
)

// transport sends requests to one server. What can be repeated without harm is repeated, with jitter.
type transport struct {
	url    string
	key    string
	client *http.Client
}

// asked is one request. Repeats are harmless unless once is set.
type asked struct {
	query    url.Values
	body     any
	headers  map[string]string
	once     bool
	timeout  time.Duration
	attempts int
}

func newTransport(given, key string, client *http.Client) (*transport, error) {
	parts, err := url.Parse(given)
	if err != nil || (parts.Scheme != "http" && parts.Scheme != "https") || parts.Host == "" {
		return nil, fmt.Errorf("url: %q is no server's address; give one such as http://127.0.0.1:8080", given)
	}
	if client == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = 16
		own.IdleConnTimeout = 4 * time.Second
		client = &http.Client{Transport: own}
	}
	followsNone := *client // a redirect followed makes a GET of what was to be sent
	followsNone.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &transport{strings.TrimRight(given, "/"), key, &followsNone}, nil
}

// call asks, and reads the answer into answer (a pointer, or nil). It returns the status.
func (t *transport) call(ctx context.Context, method, path string, asked asked, answer any) (int, error) {
	var body []byte
	if asked.body != nil {
		var err error
		if body, err = json.Marshal(asked.body); err != nil {
			return 0, fmt.Errorf("it can't be written as JSON: %w", err)
		}
	}
	attempts := asked.attempts
	if attempts == 0 {
		attempts = attemptsMax
	}
	for attempt := 1; ; attempt++ {
		status, failed := t.once(ctx, method, path, asked, body, answer)
		if failed == nil {
			return status, nil
		}
		if ctx.Err() != nil {
			return status, ctx.Err()
		}
		again := failed.Is(ErrUnavailable) && (failed.Status == http.StatusTooManyRequests || !asked.once)
		if !again || attempt >= attempts {
			return status, failed
		}
		if err := sleep(ctx, max(failed.RetryAfter, backoff(attempt, backoffMax))); err != nil {
			return status, err
		}
	}
}

func (t *transport) once(ctx context.Context, method, path string, asked asked, body []byte, answer any) (int, *Error) {
	limit := asked.timeout
	if limit == 0 {
		limit = timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	target := t.url + "/api/v1" + path
	if len(asked.query) > 0 {
		target += "?" + asked.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, t.outage(err)
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "horarium-go")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if t.key != "" {
		request.Header.Set("Authorization", "Bearer "+t.key)
	}
	for name, value := range asked.headers {
		request.Header.Set(name, value)
	}
	response, err := t.client.Do(request)
	if err != nil {
		return 0, t.outage(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return 0, t.outage(err)
	}
	if response.StatusCode >= 300 {
		return response.StatusCode, errorOf(response, content)
	}
	if answer != nil && len(content) > 0 {
		if err := json.Unmarshal(content, answer); err != nil {
			return response.StatusCode, t.outage(fmt.Errorf("an answer that can't be read: %w", err))
		}
	}
	return response.StatusCode, nil
}

func (t *transport) outage(err error) *Error {
	return &Error{Problem: Problem{Detail: fmt.Sprintf("no answer from %s: %v", t.url, err), Code: "outage"}, cause: err}
}

func errorOf(response *http.Response, content []byte) *Error {
	failed := &Error{}
	if json.Unmarshal(content, &failed.Problem) != nil {
		failed.Problem = Problem{}
	}
	if place := response.Header.Get("Location"); place != "" && failed.Detail == "" {
		failed.Detail = fmt.Sprintf("the server answered %d and names another address: %s", response.StatusCode, place)
	}
	failed.Status = response.StatusCode
	if seconds, err := strconv.ParseUint(strings.TrimSpace(response.Header.Get("Retry-After")), 10, 20); err == nil {
		failed.RetryAfter = min(time.Duration(seconds)*time.Second, retryAfterMax)
	}
	return failed
}

// backoff doubles, half of it by chance, so that many clients do not come back as one.
func backoff(attempt int, most time.Duration) time.Duration {
	pause := min(backoffMin<<min(attempt-1, 16), most)
	return time.Duration(float64(pause) * (0.5 + mathrand.Float64()/2))
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// newKey is an idempotency key that no other request has.
func newKey() string {
	var key [16]byte
	_, _ = rand.Read(key[:])
	return hex.EncodeToString(key[:])
}
