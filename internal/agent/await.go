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

// awaitAPIServer returns when the API server answers. An agent that ended instead would be started
// again after longer and longer pauses, up to five minutes, and so be away for as long after an
// outage. It is alive meanwhile, and not ready.
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
			http.Error(w, "the API server does not answer yet", http.StatusServiceUnavailable)
		}
	})}
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() { _ = health.Serve(listener) })
	defer func() { _ = health.Close() }()
	for said := (time.Time{}); ; {
		err := a.askVersion(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(said) > awaitSay {
			a.log.Warn("the API server does not answer; the agent waits for it", "err", err)
			said = time.Now()
		}
		if !notify.Pause(ctx, awaitPause) {
			return ctx.Err()
		}
	}
}

// askVersion asks the API server for its version. Any answer will do, a refusal too.
func (a *agent) askVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	err := a.kubernetes.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return nil // it answered
	}
	return err
}
