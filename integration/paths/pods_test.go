package paths

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/integration/e2e"
)

// fetched is how many bytes are fetched each way.
const fetched = 4_000_000

// between are two pods of a namespace of rome: one at home, one in milan.
type between struct{ inn, out corev1.Pod }

// bothEnds runs the two pods.
func (w *world) bothEnds(ctx context.Context, t *testing.T) between {
	t.Helper()
	inn, innService := e2e.Web(shop, "inn", 1, e2e.AtHome)
	out, outService := e2e.Web(shop, "out", 1, e2e.Away)
	e2e.OK(t, in(ctx, w.milan, out))
	e2e.OK(t, w.rome.Create(ctx, inn, innService, out, outService))
	inns, err := w.rome.PodsReady(ctx, e2e.Scheduled, shop, inn.Labels, 1)
	e2e.OK(t, err)
	outs, err := w.rome.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 1)
	e2e.OK(t, err)
	return between{inns[0], outs[0]}
}

// connect waits until the pods reach each other, and a command and a log pass the session.
func (w *world) connect(ctx context.Context, p between) error {
	if err := w.rome.ReachesAll(ctx, e2e.Restarted, shop, p.inn.Name, "http://out:8080/name", []corev1.Pod{p.out}); err != nil {
		return err
	}
	if err := w.rome.ReachesAll(ctx, e2e.Restarted, shop, p.out.Name, "http://inn:8080/name", []corev1.Pod{p.inn}); err != nil {
		return err
	}
	for from, to := range map[string]string{p.inn.Name: "out", p.out.Name: "inn"} {
		text, err := w.rome.InPod(ctx, shop, from, "/tool", "curl", "-t", "60s", fmt.Sprintf("http://%s:8080/bytes/%d", to, fetched))
		if err != nil {
			return err
		}
		if len(text) != fetched {
			return fmt.Errorf("%d bytes came from %s, want %d", len(text), to, fetched)
		}
	}
	log, err := w.rome.Kubectl(ctx, "logs", "-n", shop, p.out.Name)
	if err == nil && !strings.Contains(log, "GET /name") {
		err = errors.New("there is no request in the log of the pod abroad: " + log)
	}
	return err
}
