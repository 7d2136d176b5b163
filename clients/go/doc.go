// Package horarium is a client of Horarium, a durable job scheduler, and a worker for its queues.
//
//	client, err := horarium.New("http://127.0.0.1:8080", "")
//	run, err := client.Enqueue(ctx, "images", map[string]any{"width": 640}, horarium.RunOptions{})
//
//	worker, err := horarium.NewWorker(client, map[string]horarium.Handler{"images": resize}, horarium.WorkerOptions{})
//	err = worker.Run(ctx) // until ctx is done; then it finishes what is under way
//
// It needs the standard library alone. Names of fields are those of the API; types.go is made from its document.
package horarium
