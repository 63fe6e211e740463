package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// free returns an address on which no process listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// While no API server responds the agent is alive, not ready, and waits; and gives the port of
// its health back.
func TestAgentWaitsForItsAPIServer(t *testing.T) {
	t.Parallel()
	api, health := free(t), free(t)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + api})
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{cfg: Config{HealthAddress: health}, kubernetes: client, log: slog.New(slog.DiscardHandler)}
	done := make(chan error, 1)
	go func() { done <- a.awaitAPIServer(t.Context()) }()
	probe := func(path string) (status int) {
		eventually(t, "the health server answers "+path, func() bool {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+health+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				return false
			}
			_ = answer.Body.Close()
			status = answer.StatusCode
			return true
		})
		return status
	}
	if alive, ready := probe("/healthz"), probe("/readyz"); alive != http.StatusOK || ready != http.StatusServiceUnavailable {
		t.Errorf("alive: %d, ready: %d", alive, ready)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", api)
	if err != nil {
		t.Skipf("another process took the port: %v", err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, http.StatusForbidden)
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	again, err := new(net.ListenConfig).Listen(t.Context(), "tcp", health)
	if err != nil {
		t.Fatalf("the port of its health is still taken: %v", err)
	}
	_ = again.Close()
}

func TestAgentThatIsToEndDoesNotWait(t *testing.T) {
	t.Parallel()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + free(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := &agent{cfg: Config{HealthAddress: "127.0.0.1:0"}, kubernetes: client, log: slog.New(slog.DiscardHandler)}
	done := make(chan error, 1)
	go func() { done <- a.awaitAPIServer(ctx) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
}
