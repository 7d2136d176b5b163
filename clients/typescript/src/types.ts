// Made from the OpenAPI document by tools/client_types.py: not to be edited.

export interface AddedRun {
  id: string | null;
  outcome: "created" | "debounced" | "exists" | "replaced" | "failed";
  problem?: Problem;
}

export interface AfterTrigger {
  type: "after";
  jobs: string[];
  outcome?: "completed" | "finished" | null;
  within?: "day" | "hour" | "month" | "week" | Seconds | null;
  timezone?: string | null;
  deadline_seconds?: number | null;
}

export interface AnyOfTrigger {
  type: "any_of";
  triggers: Trigger[];
}

export interface Approval {
  roles?: ("admin" | "editor" | "operator" | "producer" | "viewer" | "worker")[];
  within_seconds?: number;
  then?: "run" | "skip";
  four_eyes?: boolean;
}

export interface BetweenTrigger {
  type: "between";
  trigger: Trigger;
  from?: string | null;
  until?: string | null;
}

export interface BulkAnswer {
  matched: number;
  done: number;
  left?: Record<string, number>;
  cursor?: string;
}

export interface BulkRequest {
  ids?: string[] | null;
  job?: string | null;
  state?: State | State[] | null;
  queue?: string | null;
  since?: string | null;
  until?: string | null;
  error_contains?: string | null;
  per_second?: number | null;
  dry_run?: boolean;
  cursor?: string | null;
}

export interface BusTarget {
  type: "bus";
  bus?: string;
  payload?: unknown;
}

export interface BusinessDayTrigger {
  type: "business_day";
  trigger: CronTrigger | IntervalTrigger | OnceTrigger | RruleTrigger | PhraseTrigger | AnyOfTrigger | ExceptTrigger | BetweenTrigger | BusinessDayTrigger | AfterTrigger;
  calendar?: string | null;
  convention?: "following" | "modified_following" | "modified_preceding" | "nearest" | "preceding" | "skip" | "unadjusted" | null;
  offset?: number | null;
}

export interface CatchUp {
  policy?: CatchUpPolicy;
  window_seconds?: number | null;
  then?: "all" | "latest" | "none";
  within_seconds?: number;
}

export type CatchUpPolicy = "all" | "ask" | "latest" | "none";

export type Cause = "backfill" | "catch_up" | "enqueued" | "follow_up" | "manual" | "ping" | "schedule";

export interface ClaimRequest {
  queues: string[];
  limit?: number;
  wait_seconds?: number;
  worker?: string;
}

export interface CommandTarget {
  type: "command";
  command: string[];
  queue?: string;
  env?: Record<string, string | SecretRef>;
  cwd?: string | null;
  user?: string | null;
  stdin?: string | null;
  timeout_seconds?: number | null;
  success_codes?: number[];
  discard_codes?: number[];
}

export interface CompleteRequest {
  token: number;
  result?: unknown;
}

export type Completion = "callback" | "response";

export interface Concurrency {
  key: string;
  max?: number;
}

export interface CronTrigger {
  type: "cron";
  expression: string;
  timezone?: string | null;
  day_match?: "all" | "any" | null;
  gap?: "run_at_transition" | "shift" | "skip" | null;
  repeat?: "both" | "first" | "second" | null;
  seed?: string | null;
}

export interface Debounce {
  key: string;
  seconds: number;
  max_seconds?: number | null;
}

export type Disposition = "approval_expired" | "cancelled" | "dst_gap" | "excluded" | "held" | "limit_reached" | "missed" | "not_started" | "ran" | "rejected" | "skipped_overlap" | "skipped_override" | "skipped_paused" | "withdrawn";

export interface EventView {
  at: string;
  state: State;
  message: string;
  detail?: string;
}

export interface ExceptTrigger {
  type: "except";
  trigger: Trigger;
  except: (Trigger | ExcludedDates | ExcludedWeekdays | ExcludedHours | ExcludedWindow | ExcludedUntil | ExcludedAfter)[];
}

export interface ExcludedAfter {
  trigger: Trigger;
  for_seconds: number;
}

export interface ExcludedDates {
  dates: string[];
  timezone?: string | null;
}

export interface ExcludedHours {
  from: string;
  until: string;
  weekdays?: string[] | null;
  timezone?: string | null;
}

export interface ExcludedUntil {
  until: string;
}

export interface ExcludedWeekdays {
  weekdays: string[];
  timezone?: string | null;
}

export interface ExcludedWindow {
  from: string;
  until?: string | null;
}

export interface ExternalTarget {
  type: "external";
}

export interface FailRequest {
  token: number;
  error: string;
  retryable?: boolean;
  retry_after_seconds?: number | null;
}

export interface Fault {
  field: string;
  message: string;
}

export interface Fires {
  fires: string[];
  words: string;
  overrides?: OverrideView[];
  warnings?: string[];
}

export interface Follow {
  notify?: string | null;
  trigger?: string | null;
  payload?: unknown;
  after?: number;
  seconds?: number | null;
}

export interface HandlerTarget {
  type: "handler";
  name: string;
  args?: Record<string, unknown>;
}

export interface HeartbeatRequest {
  token: number;
  progress?: unknown;
}

export interface HttpTarget {
  type: "http";
  url: string;
  method?: string;
  headers?: Record<string, string | SecretRef>;
  body?: unknown;
  timeout_seconds?: number;
  expected_status?: number[];
  signing_secret?: string | SecretRef | null;
  completion?: Completion;
  cancel_url?: string | null;
  params?: Record<string, string | SecretRef>;
}

export interface IntervalTrigger {
  type: "interval";
  every_seconds: number;
  anchor?: string | null;
  from?: "end" | null;
}

export interface JobDefinition {
  name: string;
  trigger: Trigger;
  target: HttpTarget | HandlerTarget | QueueTarget | CommandTarget | BusTarget | ExternalTarget;
  enabled?: boolean;
  labels?: Record<string, string>;
  catch_up?: CatchUp;
  overlap?: Overlap;
  retry?: Retry;
  timeouts?: Timeouts;
  priority?: number;
  concurrency?: Concurrency | null;
  rate?: Rate[];
  fair?: string | null;
  jitter_seconds?: number;
  starts_at?: string | null;
  ends_at?: string | null;
  fires_max?: number | null;
  retention?: Retention;
  title?: string | null;
  buffer_max?: number | null;
  approval?: Approval | null;
  on?: Record<string, Follow[]>;
}

export interface JobPage {
  items: JobView[];
  next_cursor: string | null;
}

export type JobState = "enabled" | "finished" | "paused";

export interface JobView {
  name: string;
  trigger: Trigger;
  target: HttpTarget | HandlerTarget | QueueTarget | CommandTarget | BusTarget | ExternalTarget;
  enabled: boolean;
  labels: Record<string, string>;
  catch_up: CatchUp;
  overlap: Overlap;
  retry: Retry;
  timeouts: Timeouts;
  priority: number;
  concurrency: Concurrency | null;
  rate?: Rate[];
  fair?: string | null;
  jitter_seconds: number;
  starts_at: string | null;
  ends_at: string | null;
  fires_max: number | null;
  retention: Retention;
  title?: string | null;
  buffer_max?: number | null;
  approval?: Approval | null;
  on: Record<string, Follow[]>;
  id: string;
  version: number;
  state: JobState;
  words: string;
  next_fire_at: string | null;
  fires_count: number;
  paused_at: string | null;
  pause_reason: string | null;
  paused_until?: string | null;
  overrides?: OverrideView[];
  overrides_dropped?: string[];
  missed?: MissedView;
  created_at: string;
  updated_at: string;
  finished_at: string | null;
  last_run?: LastRunView | null;
  last_success_at?: string | null;
  failures_in_a_row?: number;
  failing_since?: string | null;
  ping_url?: string;
}

export interface LastRunView {
  id: string;
  state: State;
  finished_at: string;
  error: string | null;
}

export interface LeaseView {
  token: number;
  expires_at: string;
}

export interface LineRequest {
  text: string;
  stream?: string;
  at?: string | null;
}

export interface LineView {
  at: string;
  stream: string;
  text: string;
}

export interface LogRequest {
  token: number;
  lines: (string | LineRequest)[];
}

export interface LogView {
  items: LineView[];
  next_cursor: string | null;
}

export interface MissedView {
  id: string;
  fires: number;
  fire_at: string;
  last_fire_at: string;
  expires_at: string;
  decision: string | null;
  by: string;
  reason: string | null;
}

export type OnConflict = "keep" | "replace";

export interface OnceTrigger {
  type: "once";
  at: string;
}

export type Overlap = "allow" | "buffer_all" | "buffer_one" | "cancel_other" | "skip" | "terminate_other";

export interface OverrideView {
  fire_at: string;
  action: "move" | "skip";
  to: string | null;
  reason: string | null;
  by: string;
  at: string;
}

export interface PauseRequest {
  reason?: string | null;
  until?: string | null;
}

export interface PhraseTrigger {
  type: "phrase";
  text: string;
  timezone?: string | null;
  anchor?: string | null;
}

export interface PreviewRequest {
  trigger: Trigger;
  after?: string | null;
  count?: number;
}

export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  field?: string;
  position?: number;
  errors?: Fault[];
  missing_scopes?: string[];
  jobs?: string[];
  previous?: string | null;
  next?: string | null;
  changed?: string[];
}

export interface PulseView {
  cancel_requested: boolean;
  expires_at: string;
}

export interface QueueTarget {
  type: "queue";
  queue: string;
  payload?: unknown;
}

export interface Rate {
  max: number;
  per_seconds: number;
  burst?: number | null;
  key: string;
}

export interface Report {
  id: string;
  token: number;
  outcome: "cancelled" | "completed" | "deferred" | "failed" | "released" | "succeeded";
  result?: unknown;
  error?: string | null;
  retryable?: boolean;
  retry_after_seconds?: number | null;
  until?: string | null;
  reason?: string | null;
}

export interface Retention {
  finished_seconds?: number | null;
  runs_max?: number | null;
}

export interface Retry {
  attempts_max?: number;
  backoff_seconds?: number;
  backoff_factor?: number;
  backoff_max_seconds?: number;
  age_max_seconds?: number | null;
  silences_max?: number | "unlimited" | null;
}

export interface RruleTrigger {
  type: "rrule";
  rrule: string;
  timezone?: string | null;
  gap?: "run_at_transition" | "shift" | "skip" | null;
  repeat?: "both" | "first" | "second" | null;
  anchor?: string | null;
}

export interface RunBatch {
  runs: RunView[];
}

export interface RunDefinition {
  target: HttpTarget | HandlerTarget | QueueTarget | CommandTarget | BusTarget | ExternalTarget;
  payload?: unknown;
  at?: string | null;
  delay_seconds?: number | null;
  priority?: number;
  unique_key?: string | null;
  retry?: Retry;
  timeouts?: Timeouts;
  retention?: Retention;
  concurrency?: Concurrency | null;
  unique?: Unique | null;
  debounce?: Debounce | null;
  rate?: Rate[];
  labels?: Record<string, string>;
  fair?: string | null;
}

export interface RunPage {
  items: RunView[];
  next_cursor: string | null;
}

export interface RunView {
  id: string;
  job: string | null;
  queue: string;
  fire_at: string;
  due_at: string;
  state: State;
  attempt: number;
  attempts_max?: number;
  priority: number;
  cause: Cause;
  disposition: Disposition | null;
  fires: number;
  last_fire_at: string | null;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  worker: string | null;
  error: string | null;
  result: unknown;
  progress: unknown;
  payload: unknown;
  idempotency_key: string;
  history: EventView[];
  lease?: LeaseView;
  traceparent?: string;
  target?: CommandTarget;
  labels?: Record<string, string>;
  rates?: Rate[];
  waits_for?: string;
  fair?: string;
  batch?: string;
}

export interface Seconds {
  seconds: number;
}

export interface SecretRef {
  secret: string;
}

export interface Settled {
  id: string;
  state?: State;
  problem?: Problem;
}

export type State = "cancelled" | "cancelling" | "completed" | "failed" | "pending" | "running" | "skipped";

export interface Timeouts {
  start_seconds?: number | null;
  execution_seconds?: number | null;
  heartbeat_seconds?: number;
}

export type Trigger = CronTrigger | IntervalTrigger | OnceTrigger | RruleTrigger | PhraseTrigger | AnyOfTrigger | ExceptTrigger | BetweenTrigger | BusinessDayTrigger | AfterTrigger;

export interface TriggerRequest {
  payload?: unknown;
}

export interface Unique {
  key: string;
  for_seconds?: number | null;
  until?: Until;
  on_conflict?: OnConflict;
}

export type Until = "begun" | "finished" | "forgotten";
