// Made from the OpenAPI document by tools/client_types.py: not to be edited.

package horarium

import (
	"encoding/json"
	"time"
)

// The words of the API, as requests and answers carry them.
type (
	// AddedRun: The outcome of one run of a batch: its id, or that of the run that holds its key; or why it was not added.
	AddedRun struct {
		ID      *string  `json:"id"`
		Outcome any      `json:"outcome"`
		Problem *Problem `json:"problem,omitempty"`
	}
	// AfterTrigger: Fires once in each window in which all of these jobs had a run that completed (or `finished`: ended in any way). The fire time is the start of the window; a run counts in the window of its own fire time, a retry in that of the run that it repeats. `deadline_seconds` after that start a window in which one is missing is `missed`. Stands alone: no other trigger may hold it.
	AfterTrigger struct {
		Type            string   `json:"type"`
		Jobs            []string `json:"jobs"`
		Outcome         *string  `json:"outcome,omitempty"`
		Within          any      `json:"within,omitempty"`
		Timezone        *string  `json:"timezone,omitempty"`
		DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	}
	// AnyOfTrigger: Fires whenever one of them does.
	AnyOfTrigger struct {
		Type     string    `json:"type"`
		Triggers []Trigger `json:"triggers"`
	}
	// Approval: Each run waits for a person's decision before its first attempt. `roles`: who may decide: callers that have all scopes of one of these. `within_seconds`: how long it waits; `then`: what becomes of it without a decision. `four_eyes`: who defined the job, or asked for the run, may not decide.
	Approval struct {
		Roles         []string `json:"roles,omitempty"`
		WithinSeconds *float64 `json:"within_seconds,omitempty"`
		Then          *string  `json:"then,omitempty"`
		FourEyes      *bool    `json:"four_eyes,omitempty"`
	}
	// BetweenTrigger: Fires as `trigger` does, from `from` (included) to `until` (excluded).
	BetweenTrigger struct {
		Type    string  `json:"type"`
		Trigger Trigger `json:"trigger"`
		From    *string `json:"from,omitempty"`
		Until   *string `json:"until,omitempty"`
	}
	// BulkAnswer: The result of one request: how many runs matched, how many were changed, and why not the others. `cursor`: where the next request goes on; left out: nothing is left.
	BulkAnswer struct {
		Matched int            `json:"matched"`
		Done    int            `json:"done"`
		Left    map[string]int `json:"left,omitempty"`
		Cursor  *string        `json:"cursor,omitempty"`
	}
	// BulkRequest: Which runs: `ids`, or those that fit every field of the filter. `state`: one, or several.
	BulkRequest struct {
		Ids           []string   `json:"ids,omitempty"`
		Job           *string    `json:"job,omitempty"`
		State         any        `json:"state,omitempty"`
		Queue         *string    `json:"queue,omitempty"`
		Since         *time.Time `json:"since,omitempty"`
		Until         *time.Time `json:"until,omitempty"`
		ErrorContains *string    `json:"error_contains,omitempty"`
		PerSecond     *float64   `json:"per_second,omitempty"`
		DryRun        *bool      `json:"dry_run,omitempty"`
		Cursor        *string    `json:"cursor,omitempty"`
	}
	// BusTarget: A message bus, by the name under which it is configured.
	BusTarget struct {
		Type    string  `json:"type"`
		Bus     *string `json:"bus,omitempty"`
		Payload any     `json:"payload,omitempty"`
	}
	// BusinessDayTrigger: Fires as `trigger` does, on the business days of a calendar (left out: Monday to Friday). A convention moves a fire time whose local date is none; the wall time stays; then `offset` business days on, or back.
	BusinessDayTrigger struct {
		Type       string  `json:"type"`
		Trigger    any     `json:"trigger"`
		Calendar   *string `json:"calendar,omitempty"`
		Convention *string `json:"convention,omitempty"`
		Offset     *int    `json:"offset,omitempty"`
	}
	// CatchUp: `latest` (the default) runs once, for the newest fire time that was missed; `all` runs the newest 1,000 of them; `none` runs none. `ask`: a person decides which of these it is; without a decision within `within_seconds` (14,400) it is `then` (`latest`); both mean nothing under other policies. Fire times older than `window_seconds` count as missed under every policy.
	CatchUp struct {
		Policy        *CatchUpPolicy `json:"policy,omitempty"`
		WindowSeconds *float64       `json:"window_seconds,omitempty"`
		Then          *string        `json:"then,omitempty"`
		WithinSeconds *float64       `json:"within_seconds,omitempty"`
	}
	// CatchUpPolicy: The policy for fire times that could not be planned in time. One of all, ask, latest, none.
	CatchUpPolicy string
	// Cause: Why a run exists. One of backfill, catch_up, enqueued, follow_up, manual, ping, schedule.
	Cause string
	// ClaimRequest: Whose work is wanted, how much of it at most, and how long to wait where there is none.
	ClaimRequest struct {
		Queues      []string `json:"queues"`
		Limit       *int     `json:"limit,omitempty"`
		WaitSeconds *float64 `json:"wait_seconds,omitempty"`
		Worker      *string  `json:"worker,omitempty"`
	}
	// CommandTarget: A program with its arguments, which a worker of the queue starts, without a shell. A run's payload reaches it as standard input (in place of `stdin`) and as HORARIUM_PAYLOAD. `env` is added to the worker's environment. `user`: whom the program runs as. `success_codes`: exit codes that mean done; `discard_codes`: failed, and another attempt can't help; any other: failed, and tried again as the job's policy says. `timeout_seconds`: when it is ended, and failed.
	CommandTarget struct {
		Type           string         `json:"type"`
		Command        []string       `json:"command"`
		Queue          *string        `json:"queue,omitempty"`
		Env            map[string]any `json:"env,omitempty"`
		Cwd            *string        `json:"cwd,omitempty"`
		User           *string        `json:"user,omitempty"`
		Stdin          *string        `json:"stdin,omitempty"`
		TimeoutSeconds *float64       `json:"timeout_seconds,omitempty"`
		SuccessCodes   []int          `json:"success_codes,omitempty"`
		DiscardCodes   []int          `json:"discard_codes,omitempty"`
	}
	// CompleteRequest: The work is done; `result` is kept with the run.
	CompleteRequest struct {
		Token  int64 `json:"token"`
		Result any   `json:"result,omitempty"`
	}
	// Completion: When an HTTP run is done: with its response, or when the endpoint calls back. One of callback, response.
	Completion string
	// Concurrency: At most `max` runs that share `key` are claimed at one time, over all jobs and nodes.
	Concurrency struct {
		Key string `json:"key"`
		Max *int   `json:"max,omitempty"`
	}
	// CronTrigger: 5 fields, 6 (seconds first) or 7 (year last), or `@daily` and its family.
	CronTrigger struct {
		Type       string  `json:"type"`
		Expression string  `json:"expression"`
		Timezone   *string `json:"timezone,omitempty"`
		DayMatch   *string `json:"day_match,omitempty"`
		Gap        *string `json:"gap,omitempty"`
		Repeat     *string `json:"repeat,omitempty"`
		Seed       *string `json:"seed,omitempty"`
	}
	// Debounce: Of many calls with `key` the last counts: each brings its payload, and moves the due time of the run that waits to `seconds` from now, at most to `max_seconds` from the first.
	Debounce struct {
		Key        string   `json:"key"`
		Seconds    float64  `json:"seconds"`
		MaxSeconds *float64 `json:"max_seconds,omitempty"`
	}
	// Disposition: How a fire time ended. `excluded`, `dst_gap` and `limit_reached` follow from the rule (`rules.explaining`): no stored run has them. One of approval_expired, cancelled, dst_gap, excluded, held, limit_reached, missed, not_started, ran, rejected, skipped_overlap, skipped_override, skipped_paused, withdrawn.
	Disposition string
	// EventView: One line of a run's history. `detail`: of a failed attempt, the end of its traceback; left out of all others.
	EventView struct {
		At      time.Time `json:"at"`
		State   State     `json:"state"`
		Message string    `json:"message"`
		Detail  *string   `json:"detail,omitempty"`
	}
	// ExceptTrigger: Fires as `trigger` does, but not at what `except` lists: dates, weekdays, windows of time, other triggers.
	ExceptTrigger struct {
		Type    string  `json:"type"`
		Trigger Trigger `json:"trigger"`
		Except  []any   `json:"except"`
	}
	// ExcludedAfter: `for_seconds` seconds from each fire time of a trigger on.
	ExcludedAfter struct {
		Trigger    Trigger `json:"trigger"`
		ForSeconds float64 `json:"for_seconds"`
	}
	// ExcludedDates: Whole days: `2026-12-25`, `2026-12-24/2027-01-01`, or `12-25` for every year.
	ExcludedDates struct {
		Dates    []string `json:"dates"`
		Timezone *string  `json:"timezone,omitempty"`
	}
	// ExcludedHours: Every day from one time of day to another (`22:00` to `06:00` passes midnight).
	ExcludedHours struct {
		From     string   `json:"from"`
		Until    string   `json:"until"`
		Weekdays []string `json:"weekdays,omitempty"`
		Timezone *string  `json:"timezone,omitempty"`
	}
	// ExcludedUntil: Everything before an instant.
	ExcludedUntil struct {
		Until string `json:"until"`
	}
	// ExcludedWeekdays: Whole days of the week.
	ExcludedWeekdays struct {
		Weekdays []string `json:"weekdays"`
		Timezone *string  `json:"timezone,omitempty"`
	}
	// ExcludedWindow: Once, from one instant on, until another if one is given.
	ExcludedWindow struct {
		From  string  `json:"from"`
		Until *string `json:"until,omitempty"`
	}
	// ExternalTarget: Work that is done elsewhere, and reports by pings.
	ExternalTarget struct {
		Type string `json:"type"`
	}
	// FailRequest: The attempt failed. `retryable` false: no other attempt can help. `error` is kept up to 4,000 characters.
	FailRequest struct {
		Token             int64    `json:"token"`
		Error             string   `json:"error"`
		Retryable         *bool    `json:"retryable,omitempty"`
		RetryAfterSeconds *float64 `json:"retry_after_seconds,omitempty"`
	}
	// Fault: One fault of the input: its place, and the expected form.
	Fault struct {
		Field   string `json:"field"`
		Message string `json:"message"`
	}
	// Fires: Instants at which a job runs, earliest first, and its rule in plain words. `overrides`: fire times that a person skipped, which are not among them, or moved, which are there as the instants they were moved to. `warnings`: of a preview, what another scheduler would read otherwise in the same rule.
	Fires struct {
		Fires     []time.Time    `json:"fires"`
		Words     string         `json:"words"`
		Overrides []OverrideView `json:"overrides,omitempty"`
		Warnings  []string       `json:"warnings,omitempty"`
	}
	// Follow: A follow-up: a notification to the channel `notify`, or a run of the job `trigger`, with its own payload or with the one given here (`result`: what the run returned). `after`: from the n-th in a row on. `seconds`: of `late` and `overdue`, how long after its time a run begins, or ends.
	Follow struct {
		Notify  *string  `json:"notify,omitempty"`
		Trigger *string  `json:"trigger,omitempty"`
		Payload any      `json:"payload,omitempty"`
		After   *int     `json:"after,omitempty"`
		Seconds *float64 `json:"seconds,omitempty"`
	}
	// HandlerTarget: A registered Python function, called with `args`.
	HandlerTarget struct {
		Type string         `json:"type"`
		Name string         `json:"name"`
		Args map[string]any `json:"args,omitempty"`
	}
	// HeartbeatRequest: A sign of life; `progress` is kept with the run and shown.
	HeartbeatRequest struct {
		Token    int64 `json:"token"`
		Progress any   `json:"progress,omitempty"`
	}
	// HttpTarget: An HTTP request. `expected_status` holds codes; empty means any 2xx. `signing_secret` is write-only. `params` are added to the URL as parameters.
	HttpTarget struct {
		Type           string         `json:"type"`
		URL            string         `json:"url"`
		Method         *string        `json:"method,omitempty"`
		Headers        map[string]any `json:"headers,omitempty"`
		Body           any            `json:"body,omitempty"`
		TimeoutSeconds *float64       `json:"timeout_seconds,omitempty"`
		ExpectedStatus []int          `json:"expected_status,omitempty"`
		SigningSecret  any            `json:"signing_secret,omitempty"`
		Completion     *Completion    `json:"completion,omitempty"`
		CancelURL      *string        `json:"cancel_url,omitempty"`
		Params         map[string]any `json:"params,omitempty"`
	}
	// IntervalTrigger: Every `every_seconds`, counted from `anchor` (left out: from when the job is defined), so it does not drift. With `from` `end`, and no anchor: from the end of the last run.
	IntervalTrigger struct {
		Type         string  `json:"type"`
		EverySeconds float64 `json:"every_seconds"`
		Anchor       *string `json:"anchor,omitempty"`
		From         *string `json:"from,omitempty"`
	}
	// JobDefinition: A job as its owner writes it. `enabled` left out means: as it is, or true for a new job.
	JobDefinition struct {
		Name          string              `json:"name"`
		Trigger       Trigger             `json:"trigger"`
		Target        any                 `json:"target"`
		Enabled       *bool               `json:"enabled,omitempty"`
		Labels        map[string]string   `json:"labels,omitempty"`
		CatchUp       *CatchUp            `json:"catch_up,omitempty"`
		Overlap       *Overlap            `json:"overlap,omitempty"`
		Retry         *Retry              `json:"retry,omitempty"`
		Timeouts      *Timeouts           `json:"timeouts,omitempty"`
		Priority      *int                `json:"priority,omitempty"`
		Concurrency   *Concurrency        `json:"concurrency,omitempty"`
		Rate          []Rate              `json:"rate,omitempty"`
		Fair          *string             `json:"fair,omitempty"`
		JitterSeconds *float64            `json:"jitter_seconds,omitempty"`
		StartsAt      *time.Time          `json:"starts_at,omitempty"`
		EndsAt        *time.Time          `json:"ends_at,omitempty"`
		FiresMax      *int                `json:"fires_max,omitempty"`
		Retention     *Retention          `json:"retention,omitempty"`
		Title         *string             `json:"title,omitempty"`
		BufferMax     *int                `json:"buffer_max,omitempty"`
		Approval      *Approval           `json:"approval,omitempty"`
		On            map[string][]Follow `json:"on,omitempty"`
	}
	// JobPage: One page of jobs, by name. `next_cursor`: where the next page begins; null on the last.
	JobPage struct {
		Items      []JobView `json:"items"`
		NextCursor *string   `json:"next_cursor"`
	}
	// JobState: The state of a job, as it is shown. `finished`: it can never fire again, and its runs have ended. One of enabled, finished, paused.
	JobState string
	// JobView: A job as it is shown: the definition, its state, and its health (which an entry of the audit leaves out).
	JobView struct {
		Name             string              `json:"name"`
		Trigger          Trigger             `json:"trigger"`
		Target           any                 `json:"target"`
		Enabled          bool                `json:"enabled"`
		Labels           map[string]string   `json:"labels"`
		CatchUp          CatchUp             `json:"catch_up"`
		Overlap          Overlap             `json:"overlap"`
		Retry            Retry               `json:"retry"`
		Timeouts         Timeouts            `json:"timeouts"`
		Priority         int                 `json:"priority"`
		Concurrency      *Concurrency        `json:"concurrency"`
		Rate             []Rate              `json:"rate,omitempty"`
		Fair             *string             `json:"fair,omitempty"`
		JitterSeconds    float64             `json:"jitter_seconds"`
		StartsAt         *time.Time          `json:"starts_at"`
		EndsAt           *time.Time          `json:"ends_at"`
		FiresMax         *int                `json:"fires_max"`
		Retention        Retention           `json:"retention"`
		Title            *string             `json:"title,omitempty"`
		BufferMax        *int                `json:"buffer_max,omitempty"`
		Approval         *Approval           `json:"approval,omitempty"`
		On               map[string][]Follow `json:"on"`
		ID               string              `json:"id"`
		Version          int                 `json:"version"`
		State            JobState            `json:"state"`
		Words            string              `json:"words"`
		NextFireAt       *time.Time          `json:"next_fire_at"`
		FiresCount       int                 `json:"fires_count"`
		PausedAt         *time.Time          `json:"paused_at"`
		PauseReason      *string             `json:"pause_reason"`
		PausedUntil      *string             `json:"paused_until,omitempty"`
		Overrides        []OverrideView      `json:"overrides,omitempty"`
		OverridesDropped []string            `json:"overrides_dropped,omitempty"`
		Missed           *MissedView         `json:"missed,omitempty"`
		CreatedAt        time.Time           `json:"created_at"`
		UpdatedAt        time.Time           `json:"updated_at"`
		FinishedAt       *time.Time          `json:"finished_at"`
		LastRun          *LastRunView        `json:"last_run,omitempty"`
		LastSuccessAt    *time.Time          `json:"last_success_at,omitempty"`
		FailuresInARow   *int                `json:"failures_in_a_row,omitempty"`
		FailingSince     *string             `json:"failing_since,omitempty"`
		PingURL          *string             `json:"ping_url,omitempty"`
	}
	// LastRunView: The run of a job that completed or failed last.
	LastRunView struct {
		ID         string    `json:"id"`
		State      State     `json:"state"`
		FinishedAt time.Time `json:"finished_at"`
		Error      *string   `json:"error"`
	}
	// LeaseView: A claim: its fencing token, and until when it lasts.
	LeaseView struct {
		Token     int64     `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	// LineRequest: One line. `at` left out: now.
	LineRequest struct {
		Text   string     `json:"text"`
		Stream *string    `json:"stream,omitempty"`
		At     *time.Time `json:"at,omitempty"`
	}
	// LineView: One line of a run's log. A gap in the middle is told by a line of the stream `horarium`.
	LineView struct {
		At     time.Time `json:"at"`
		Stream string    `json:"stream"`
		Text   string    `json:"text"`
	}
	// LogRequest: Lines of a run's log, in order. A plain text is a line of `stdout`. Lines longer than 8 KiB are cut.
	LogRequest struct {
		Token int64 `json:"token"`
		Lines []any `json:"lines"`
	}
	// LogView: Lines of a run's log. `next_cursor`: where to go on; null once the run is over and all of it was read.
	LogView struct {
		Items      []LineView `json:"items"`
		NextCursor *string    `json:"next_cursor"`
	}
	// MissedView: Fire times that a job missed and asks about (`GET /approvals`), and how that was decided.
	MissedView struct {
		ID         string    `json:"id"`
		Fires      int       `json:"fires"`
		FireAt     time.Time `json:"fire_at"`
		LastFireAt time.Time `json:"last_fire_at"`
		ExpiresAt  time.Time `json:"expires_at"`
		Decision   *string   `json:"decision"`
		By         string    `json:"by"`
		Reason     *string   `json:"reason"`
	}
	// OnConflict: The effect of a call on the run that holds its key. One of keep, replace.
	OnConflict string
	// OnceTrigger: A single instant.
	OnceTrigger struct {
		Type string `json:"type"`
		At   string `json:"at"`
	}
	// Overlap: The policy for a fire time when an earlier run of the job is not finished. Retries count as not finished. One of allow, buffer_all, buffer_one, cancel_other, skip, terminate_other.
	Overlap string
	// OverrideView: The fire time `fire_at` is skipped, or its run is due at `to`; `by` whom, `at` which instant, and why.
	OverrideView struct {
		FireAt time.Time `json:"fire_at"`
		Action string    `json:"action"`
		To     *string   `json:"to"`
		Reason *string   `json:"reason"`
		By     string    `json:"by"`
		At     time.Time `json:"at"`
	}
	// PauseRequest: Why a job is paused. `until`: it goes on by itself then.
	PauseRequest struct {
		Reason *string    `json:"reason,omitempty"`
		Until  *time.Time `json:"until,omitempty"`
	}
	// PhraseTrigger: Plain English. The understood meaning is in `words`; a word that is left over is refused.
	PhraseTrigger struct {
		Type     string  `json:"type"`
		Text     string  `json:"text"`
		Timezone *string `json:"timezone,omitempty"`
		Anchor   *string `json:"anchor,omitempty"`
	}
	// PreviewRequest: A trigger to try, without a job. `after` left out: now.
	PreviewRequest struct {
		Trigger Trigger    `json:"trigger"`
		After   *time.Time `json:"after,omitempty"`
		Count   *int       `json:"count,omitempty"`
	}
	// Problem: An error (RFC 9457). `code` is stable; `field` names the offending input, `errors` all that were found; `position` says where in a rule's text; `jobs` names those that are in the way, `changed` what is no longer as it was read; `previous` and `next` are the fire times around an instant that is none.
	Problem struct {
		Type          string   `json:"type"`
		Title         string   `json:"title"`
		Status        int      `json:"status"`
		Detail        string   `json:"detail"`
		Code          string   `json:"code"`
		Field         *string  `json:"field,omitempty"`
		Position      *int     `json:"position,omitempty"`
		Errors        []Fault  `json:"errors,omitempty"`
		MissingScopes []string `json:"missing_scopes,omitempty"`
		Jobs          []string `json:"jobs,omitempty"`
		Previous      *string  `json:"previous,omitempty"`
		Next          *string  `json:"next,omitempty"`
		Changed       []string `json:"changed,omitempty"`
	}
	// PulseView: Until when the lease now lasts, and whether the work should stop.
	PulseView struct {
		CancelRequested bool      `json:"cancel_requested"`
		ExpiresAt       time.Time `json:"expires_at"`
	}
	// QueueTarget: A named queue from which workers pull.
	QueueTarget struct {
		Type    string `json:"type"`
		Queue   string `json:"queue"`
		Payload any    `json:"payload,omitempty"`
	}
	// Rate: A limit for all runs that share `key`, over all jobs and nodes.
	Rate struct {
		Max        int     `json:"max"`
		PerSeconds float64 `json:"per_seconds"`
		Burst      *int    `json:"burst,omitempty"`
		Key        string  `json:"key"`
	}
	// Report: How one attempt ended. `until` belongs to `deferred`; `error`, `retryable` and `retry_after_seconds` to `failed`; `result` to `completed`, for which `succeeded` is another word; `reason` to the other three.
	Report struct {
		ID                string     `json:"id"`
		Token             int64      `json:"token"`
		Outcome           string     `json:"outcome"`
		Result            any        `json:"result,omitempty"`
		Error             *string    `json:"error,omitempty"`
		Retryable         *bool      `json:"retryable,omitempty"`
		RetryAfterSeconds *float64   `json:"retry_after_seconds,omitempty"`
		Until             *time.Time `json:"until,omitempty"`
		Reason            *string    `json:"reason,omitempty"`
	}
	// Retention: How long a finished run is kept (`None`: for good), and at most how many finished runs of the job.
	Retention struct {
		FinishedSeconds *float64 `json:"finished_seconds,omitempty"`
		RunsMax         *int     `json:"runs_max,omitempty"`
	}
	// Retry: Attempt n + 1 comes `backoff_seconds * backoff_factor ** (n - 1)` after attempt n failed, `backoff_max_seconds` at most, less a jitter of up to half. No attempt starts later than `age_max_seconds` after the run was due. `silences_max`: how many attempts a run may lose by the silence of its worker, beside `attempts_max`; left out, each of them counts as an attempt.
	Retry struct {
		AttemptsMax       *int     `json:"attempts_max,omitempty"`
		BackoffSeconds    *float64 `json:"backoff_seconds,omitempty"`
		BackoffFactor     *float64 `json:"backoff_factor,omitempty"`
		BackoffMaxSeconds *float64 `json:"backoff_max_seconds,omitempty"`
		AgeMaxSeconds     *float64 `json:"age_max_seconds,omitempty"`
		SilencesMax       any      `json:"silences_max,omitempty"`
	}
	// RruleTrigger: RFC 5545: `FREQ=...`, `RRULE:...`, or several lines with DTSTART, RRULE, RDATE, EXDATE, EXRULE; RFC 7529's SKIP. A rule without DTSTART is anchored to `anchor`, or to when the job is defined.
	RruleTrigger struct {
		Type     string  `json:"type"`
		Rrule    string  `json:"rrule"`
		Timezone *string `json:"timezone,omitempty"`
		Gap      *string `json:"gap,omitempty"`
		Repeat   *string `json:"repeat,omitempty"`
		Anchor   *string `json:"anchor,omitempty"`
	}
	// RunBatch: Runs that belong together.
	RunBatch struct {
		Runs []RunView `json:"runs"`
	}
	// RunDefinition: A run that belongs to no job. `payload` replaces the payload, args or body of the target. It is due now, `at` an instant, or after `delay_seconds`.
	RunDefinition struct {
		Target       any               `json:"target"`
		Payload      any               `json:"payload,omitempty"`
		At           *time.Time        `json:"at,omitempty"`
		DelaySeconds *float64          `json:"delay_seconds,omitempty"`
		Priority     *int              `json:"priority,omitempty"`
		UniqueKey    *string           `json:"unique_key,omitempty"`
		Retry        *Retry            `json:"retry,omitempty"`
		Timeouts     *Timeouts         `json:"timeouts,omitempty"`
		Retention    *Retention        `json:"retention,omitempty"`
		Concurrency  *Concurrency      `json:"concurrency,omitempty"`
		Unique       *Unique           `json:"unique,omitempty"`
		Debounce     *Debounce         `json:"debounce,omitempty"`
		Rate         []Rate            `json:"rate,omitempty"`
		Labels       map[string]string `json:"labels,omitempty"`
		Fair         *string           `json:"fair,omitempty"`
	}
	// RunPage: One page of runs, newest fire time first.
	RunPage struct {
		Items      []RunView `json:"items"`
		NextCursor *string   `json:"next_cursor"`
	}
	// RunView: A run as it is shown. `fires` > 1: a skipped run for the fire times from `fire_at` to `last_fire_at`. `idempotency_key` is the same for every attempt. `target`: the program to start, for the worker that claims it. `labels`: its own, if it belongs to no job. `rates`: its limits; `waits_for`: the key of the one for which it waits. `fair`: its fairness key. `batch`: its batch.
	RunView struct {
		ID             string            `json:"id"`
		Job            *string           `json:"job"`
		Queue          string            `json:"queue"`
		FireAt         time.Time         `json:"fire_at"`
		DueAt          time.Time         `json:"due_at"`
		State          State             `json:"state"`
		Attempt        int               `json:"attempt"`
		AttemptsMax    *int              `json:"attempts_max,omitempty"`
		Priority       int               `json:"priority"`
		Cause          Cause             `json:"cause"`
		Disposition    *Disposition      `json:"disposition"`
		Fires          int               `json:"fires"`
		LastFireAt     *time.Time        `json:"last_fire_at"`
		CreatedAt      time.Time         `json:"created_at"`
		StartedAt      *time.Time        `json:"started_at"`
		FinishedAt     *time.Time        `json:"finished_at"`
		Worker         *string           `json:"worker"`
		Error          *string           `json:"error"`
		Result         json.RawMessage   `json:"result"`
		Progress       json.RawMessage   `json:"progress"`
		Payload        json.RawMessage   `json:"payload"`
		IdempotencyKey string            `json:"idempotency_key"`
		History        []EventView       `json:"history"`
		Lease          *LeaseView        `json:"lease,omitempty"`
		Traceparent    *string           `json:"traceparent,omitempty"`
		Target         *CommandTarget    `json:"target,omitempty"`
		Labels         map[string]string `json:"labels,omitempty"`
		Rates          []Rate            `json:"rates,omitempty"`
		WaitsFor       *string           `json:"waits_for,omitempty"`
		Fair           *string           `json:"fair,omitempty"`
		Batch          *string           `json:"batch,omitempty"`
	}
	// Seconds: The length of a window, counted from 1970.
	Seconds struct {
		Seconds float64 `json:"seconds"`
	}
	// SecretRef: A secret that is read where it is used: `env:NAME`, a variable of the process, behind the prefix of the setting `secrets_env_prefix`; or `file:NAME`, a file in the folder of the setting `secrets_dir`.
	SecretRef struct {
		Secret string `json:"secret"`
	}
	// Settled: The outcome of one report: the state in which its run now is, or why nothing was written.
	Settled struct {
		ID      string   `json:"id"`
		State   *State   `json:"state,omitempty"`
		Problem *Problem `json:"problem,omitempty"`
	}
	// State: The state of a run. The last four are final. One of cancelled, cancelling, completed, failed, pending, running, skipped.
	State string
	// Timeouts: `start_seconds`: a run that no worker took within this of being due fails. `execution_seconds`: how long one attempt may take. `heartbeat_seconds`: the length of the lease; silence for longer loses the attempt. On a bus a worker takes a run by its first report, and is told to stop when one of the first two has passed.
	Timeouts struct {
		StartSeconds     *float64 `json:"start_seconds,omitempty"`
		ExecutionSeconds *float64 `json:"execution_seconds,omitempty"`
		HeartbeatSeconds *float64 `json:"heartbeat_seconds,omitempty"`
	}
	// Trigger: When a job fires. One of the types whose names end so.
	Trigger = any
	// TriggerRequest: `payload` replaces the payload, args or body of the target, for this run only.
	TriggerRequest struct {
		Payload any `json:"payload,omitempty"`
	}
	// Unique: One run at a time holds `key`: for `for_seconds` from when it was made, or `until`. With `replace`, a run that waits gets payload, due time and priority of the later call.
	Unique struct {
		Key        string      `json:"key"`
		ForSeconds *float64    `json:"for_seconds,omitempty"`
		Until      *Until      `json:"until,omitempty"`
		OnConflict *OnConflict `json:"on_conflict,omitempty"`
	}
	// Until: How long a run holds its unique key: until its first attempt begins, it is over, or it is kept no longer. One of begun, finished, forgotten.
	Until string
)
