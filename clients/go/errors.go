package horarium

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Error is what a server refuses (RFC 9457), or that there was no answer (Status 0). Code is stable.
type Error struct {
	Problem
	// RetryAfter is how long the server asked to wait.
	RetryAfter time.Duration
	cause      error
}

func (e *Error) Error() string {
	if e.Detail != "" {
		return e.Detail
	}
	return fmt.Sprintf("the server answered %d", e.Status)
}

// Unwrap gives the failure of the connection, where there was one.
func (e *Error) Unwrap() error { return e.cause }

// Kinds of errors, for errors.Is.
var (
	ErrInvalid     = errors.New("what was sent is wrong")
	ErrForbidden   = errors.New("no key, or one that may not do this")
	ErrNotFound    = errors.New("there is nothing of that name")
	ErrConflict    = errors.New("right in itself, but not in the present state")
	ErrLeaseLost   = errors.New("another worker has the run, or it has ended")
	ErrUnavailable = errors.New("no answer, 429 or 5xx: try again later")
)

// Is tells the kind of the error: errors.Is(err, horarium.ErrNotFound).
func (e *Error) Is(kind error) bool {
	switch kind {
	case ErrUnavailable:
		return e.Status == 0 || e.Status == http.StatusTooManyRequests || e.Status >= 500
	case ErrForbidden:
		return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrConflict:
		return e.Status == http.StatusConflict
	case ErrLeaseLost:
		return e.Status == http.StatusConflict && e.Code == "lease_lost"
	case ErrInvalid:
		return !e.Is(ErrUnavailable) && !e.Is(ErrForbidden) && !e.Is(ErrNotFound) && !e.Is(ErrConflict)
	}
	return false
}

// RetryError is returned by a handler: the attempt failed, and the next one begins After so long.
type RetryError struct {
	Err   error
	After time.Duration
}

func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap gives the reason.
func (e *RetryError) Unwrap() error { return e.Err }

// RetryAfter makes the next attempt begin after so long.
func RetryAfter(err error, after time.Duration) error { return &RetryError{err, after} }

// DiscardError is returned by a handler: the run failed for good.
type DiscardError struct{ Err error }

func (e *DiscardError) Error() string { return e.Err.Error() }

// Unwrap gives the reason.
func (e *DiscardError) Unwrap() error { return e.Err }

// Discard ends the run as failed, without another attempt.
func Discard(err error) error { return &DiscardError{err} }

// Ptr is the pointer that optional fields take.
func Ptr[T any](value T) *T { return &value }
