package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/internal/store"
)

// TestPeeringAgainAndAgainLeavesNothing peers, runs a pod abroad and unpeers,
// always with the same names: by default once in each way, in `make matrix` twenty times.
func TestPeeringAgainAndAgainLeavesNothing(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	if err := part(ctx, home, abroad, later); err != nil {
		t.Fatal(err)
	}
	before, err := settled(ctx, home.pair)
	if err != nil {
		t.Fatal(err)
	}
	lap := laps{}
	var took []time.Duration
	cycles := only.Number(t, "ENTENTE_CONTROL_CYCLES", 4)
	for cycle := range cycles {
		begin := time.Now()
		if err := oneCycle(ctx, home, abroad, cycle, lap); err != nil {
			t.Fatalf("cycle %d: %v", cycle, err)
		}
		took = append(took, time.Since(begin).Round(time.Millisecond))
	}
	slices.Sort(took)
	for _, part := range sorted(lap) {
		slices.Sort(lap[part])
		t.Logf("%s took %s in the median, %s at most", part, lap[part][len(lap[part])/2], lap[part][len(lap[part])-1])
	}
	t.Logf("a cycle took %s in the median, %s at most", took[len(took)/2], took[len(took)-1])
	err = eventually.Is(ctx, later, "nothing to be left", func(ctx context.Context) error {
		after, err := snapshots(ctx, home.pair)
		if err != nil {
			return err
		}
		var left []string
		for name, marks := range after {
			if was, ok := before[name]; !ok || was != marks {
				left = append(left, name+" "+marks)
			}
		}
		if slices.Sort(left); len(left) > 0 {
			return errors.New("what differs from before:\n" + strings.Join(left, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// settled returns the snapshots when nothing comes and goes any more: a new
// control plane furnishes itself for a while.
func settled(ctx context.Context, p *pair) (map[string]string, error) {
	var last map[string]string
	err := eventually.Is(ctx, later, "the clusters to settle", func(ctx context.Context) error {
		now, err := snapshots(ctx, p)
		if err != nil {
			return err
		}
		if !maps.Equal(last, now) {
			last = now
			time.Sleep(2 * time.Second)
			return errors.New("objects come and go")
		}
		return nil
	})
	return last, err
}

// laps is how long the parts of cycles took.
type laps map[string][]time.Duration

func (l laps) took(part string, begin *time.Time) {
	l[part] = append(l[part], time.Since(*begin).Round(time.Millisecond))
	*begin = time.Now()
}

// oneCycle forgets the peer each second time, and else ends only the contract.
func oneCycle(ctx context.Context, home, abroad *cluster, cycle int, lap laps) error {
	begin := time.Now()
	var known v1alpha1.ForeignCluster
	if err := home.get(ctx, abroadName, &known); apierrors.IsNotFound(err) {
		if err := join(ctx, home, abroad); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	lap.took("joining", &begin)
	if err := home.client.Create(ctx, ask("cpu=4", "memory=8Gi", "pods=20")); err != nil {
		return err
	}
	if _, err := contract(ctx, home, abroad, soon); err != nil {
		return err
	}
	lap.took("peering", &begin)
	// Most of the time that a pod's end takes is Kubernetes' own, which takes
	// seconds to delete a namespace.
	with := " with nothing there"
	if cycle%10 < 2 {
		with = " with a pod there"
		ns, err := runOne(ctx, home, fmt.Sprintf("cycle-%d", cycle))
		if err != nil {
			return err
		}
		defer func() { _ = home.client.Delete(ctx, ns) }()
		lap.took("running a pod", &begin)
	}
	ending := "forgetting"
	if cycle%2 == 0 {
		ending = "draining and ending"
		if err := home.client.Delete(ctx, ask()); err != nil {
			return err
		}
		if err := gone(ctx, home, ask(), soon); err != nil {
			return err
		}
	} else if err := part(ctx, home, abroad, soon); err != nil {
		return err
	}
	err := eventually.Is(ctx, soon, "no contract at both", func(ctx context.Context) error {
		for _, c := range []*cluster{home, abroad} {
			contracts, err := list[v1alpha1.ContractList](ctx, c)
			if err != nil {
				return err
			}
			if len(contracts.Items) > 0 {
				return fmt.Errorf("%s has %s", c.name, describe(&contracts.Items[0]))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	lap.took(ending+with, &begin)
	return nil
}

// runOne runs a pod abroad, in a namespace of its own.
func runOne(ctx context.Context, home *cluster, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := home.client.Create(ctx, ns); err != nil {
		return nil, err
	}
	if err := home.client.Create(ctx, offloadingOf(ns.Name, nil)); err != nil {
		return nil, err
	}
	p := remotePod(ns.Name, "again", nil)
	err := eventually.Is(ctx, soon, "to create a pod", func(ctx context.Context) error { return home.client.Create(ctx, p.DeepCopy()) })
	if err != nil {
		return nil, err
	}
	return ns, runs(ctx, home, p)
}

// snapshots returns all objects of both clusters by "cluster resource namespace/name", with the
// parts that refer to Entente.
func snapshots(ctx context.Context, p *pair) (map[string]string, error) {
	out := map[string]string{}
	for _, c := range p.clusters() {
		one, err := snapshot(ctx, c)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, one)
	}
	return out, nil
}

func snapshot(ctx context.Context, c *cluster) (map[string]string, error) {
	resources, err := c.kube.Discovery().ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	client, err := metadata.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, group := range resources {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range group.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" {
				continue
			}
			objects, err := client.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list %s of %s: %w", r.Name, c.name, err)
			}
			for i := range objects.Items {
				o := &objects.Items[i]
				// Tokens that were used stay until they expire, so that who used one
				// may ask again; and who was forgotten stays known as that.
				if r.Name == "secrets" && (strings.HasPrefix(o.Name, "entente-token-") || o.Name == store.ForgottenSecret) {
					continue
				}
				out[c.name+" "+r.Name+" "+o.Namespace+"/"+o.Name] = marks(o)
			}
		}
	}
	return out, nil
}

// marks returns labels, annotations and finalizers of ours.
func marks(o *metav1.PartialObjectMetadata) string {
	var out []string
	for k, v := range o.Labels {
		if strings.Contains(k+v, "entente") {
			out = append(out, k+"="+v)
		}
	}
	for k := range o.Annotations {
		if strings.Contains(k, "entente") {
			out = append(out, k)
		}
	}
	for _, f := range o.Finalizers {
		if strings.Contains(f, "entente") {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
