package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/notify"
)

// awaitAPIServer returns when the API server responds. An agent that ended instead would be restarted after longer
// and longer pauses, up to five minutes, and so be down for as long after an outage. Meanwhile it is alive, and not
// ready.
func (a *agent) awaitAPIServer(ctx context.Context) error {
	if a.askVersion(ctx) == nil {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.HealthAddress)
	if err != nil {
		return fmt.Errorf("listen for health probes on %s: %w", a.cfg.HealthAddress, err)
	}
	health := &http.Server{ReadHeaderTimeout: awaitTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			http.Error(w, "the API server does not respond yet", http.StatusServiceUnavailable)
		}
	})}
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() { _ = health.Serve(listener) })
	defer func() { _ = health.Close() }()
	for logged := (time.Time{}); ; {
		err := a.askVersion(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(logged) > awaitLogPause {
			a.log.Warn("the API server does not respond; the agent waits for it", "err", err)
			logged = time.Now()
		}
		if !notify.Pause(ctx, awaitPause) {
			return ctx.Err()
		}
	}
}

// askVersion asks the API server for its version. Any response will do, a refusal too.
func (a *agent) askVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	err := a.kubernetes.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return nil // it responded
	}
	return err
}
