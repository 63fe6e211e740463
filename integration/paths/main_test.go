package paths

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/lab"
)

// shop is the namespace of rome that is offloaded.
const shop = "shop"

// The tests share three clusters, and each begins with none that knows another one.
var theStage = e2e.Installed{
	Config:   e2e.Config{Lab: "paths", More: []string{"oslo"}, Families: lab.DualStack},
	Patience: 20 * time.Minute,
}

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// world is the three clusters.
type world struct {
	*e2e.World
	rome, milan, oslo *e2e.Side
}

// onStage returns the clusters, none of which knows another one.
func onStage(t *testing.T) (context.Context, *world) {
	t.Helper()
	ctx, w := theStage.On(t)
	s := &world{w, w.Home, w.Abroad, w.More[0]}
	e2e.OK(t, s.apart(ctx))
	return ctx, s
}

// apart has all clusters forget each other.
func (w *world) apart(ctx context.Context) error {
	if err := w.DeleteNamespace(ctx, shop); err != nil {
		return err
	}
	for _, side := range w.Sides() {
		var peers v1alpha1.ForeignClusterList
		if err := side.Client.List(ctx, &peers); err != nil {
			return err
		}
		for i := range peers.Items {
			if _, err := side.Entente(ctx, "unpeer", peers.Items[i].Name, "--now", "--forget", "--yes"); err != nil {
				return err
			}
		}
	}
	return w.Each(ctx, func(ctx context.Context, side *e2e.Side) error { return side.Unpeered(ctx, e2e.Scheduled) })
}

// joined has two clusters trust each other and be connected.
func (w *world) joined(ctx context.Context, a, b *e2e.Side) error {
	token, err := b.CreateToken(ctx)
	if err != nil {
		return err
	}
	if _, err := a.Entente(ctx, "join", token); err != nil {
		return err
	}
	return w.known(ctx, e2e.Restarted, a, b, "connected", func(fc *v1alpha1.ForeignCluster) error {
		return is(fc, v1alpha1.ConditionConnected, metav1.ConditionTrue)
	})
}

// uses has a cluster use resources of another one, which it joins.
func (w *world) uses(ctx context.Context, consumer, provider *e2e.Side) error {
	if err := w.joined(ctx, consumer, provider); err != nil {
		return err
	}
	if _, err := consumer.Entente(ctx, "peer", provider.Name); err != nil {
		return err
	}
	return w.known(ctx, e2e.Restarted, consumer, provider, "reached", func(fc *v1alpha1.ForeignCluster) error {
		return is(fc, v1alpha1.ConditionNetwork, metav1.ConditionTrue)
	})
}

// known waits until both of two clusters say something of each other.
func (w *world) known(ctx context.Context, limit time.Duration, a, b *e2e.Side, what string, check func(*v1alpha1.ForeignCluster) error) error {
	for _, way := range (e2e.Pair{a, b}).Ways() {
		side, other := way[0], way[1]
		what := fmt.Sprintf("%s to say that %s is %s", side.Name, other.Name, what)
		w.Wait(what)
		if err := eventually.Is(ctx, limit, what, func(ctx context.Context) error {
			fc, err := side.Knows(ctx, other)
			switch {
			case err != nil:
				return err
			case fc == nil:
				return errors.New("it does not know it")
			}
			return check(fc)
		}); err != nil {
			return err
		}
	}
	return nil
}

// is says that a condition is not what it is to be, or that its message lacks words.
func is(fc *v1alpha1.ForeignCluster, kind string, want metav1.ConditionStatus, words ...string) error {
	for _, c := range fc.Status.Conditions {
		if c.Type != kind {
			continue
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return fmt.Errorf("%s is %s, %s, and does not say %q: %s", kind, c.Status, c.Reason, word, c.Message)
			}
		}
		if c.Status != want {
			return fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message)
		}
		return nil
	}
	return fmt.Errorf("it has no condition %s", kind)
}

// in has the pods of a Deployment run in a cluster.
func in(ctx context.Context, provider *e2e.Side, d *appsv1.Deployment) error {
	id, err := provider.ID(ctx)
	d.Spec.Template.Spec.NodeSelector[v1alpha1.LabelPeer] = id
	return err
}

// addresses are those of a pod, one of each family.
func addresses(pod *corev1.Pod) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// patch changes the spec of another cluster in one.
func patch(ctx context.Context, side, other *e2e.Side, spec map[string]any) error {
	fc, err := side.Knows(ctx, other)
	if err != nil || fc == nil {
		return errors.Join(fmt.Errorf("%s does not know %s", side.Name, other.Name), err)
	}
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	return side.Client.Patch(ctx, fc, ctrlclient.RawPatch("application/merge-patch+json", body))
}
