package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

// The cache shows the aliases of a peer a moment later; by then others have
// asked.
func TestConcurrentPeersGetDifferentAliases(t *testing.T) {
	t.Parallel()
	const n = 6
	var objects []client.Object
	for i := range n {
		o := peertest.NewOther(t, fmt.Sprint("peer-", i))
		fc := peertest.TrustedAs(fmt.Sprint("peer-", i), o)
		fc.Status.Network = &v1alpha1.PeerNetwork{Prefixes: []string{"10.0.0.0/16"}}
		objects = append(objects, fc, peertest.ContractWith(o, fmt.Sprint("c-", i), v1alpha1.ContractProvider))
	}
	pt := newPeersTest(t, objects...)
	pt.AliasPool = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/12")}
	var stale v1alpha1.ForeignClusterList
	if err := pt.Client.List(t.Context(), &stale); err != nil {
		t.Fatal(err)
	}
	pt.Client = interceptor.NewClient(pt.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if fcs, ok := list.(*v1alpha1.ForeignClusterList); ok {
				stale.DeepCopyInto(fcs)
				return nil
			}
			return c.List(ctx, list, opts...)
		},
	})
	given := make([]string, n)
	var tasks sync.WaitGroup
	for i := range n {
		tasks.Go(func() {
			fc := stale.Items[i].DeepCopy()
			waits, err := pt.planAliases(t.Context(), fc, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")})
			if err != nil || waits != "" || len(fc.Status.Aliases) != 1 {
				t.Errorf("%s: %v, %q, %v", fc.Name, fc.Status.Aliases, waits, err)
				return
			}
			given[i] = fc.Status.Aliases[0].Alias
		})
	}
	tasks.Wait()
	seen := map[string]bool{}
	for i, alias := range given {
		if seen[alias] {
			t.Errorf("%s is assigned twice", alias)
		}
		seen[alias] = true
		// Assigned aliases stay, whatever the cache shows.
		fc := stale.Items[i].DeepCopy()
		if _, err := pt.planAliases(t.Context(), fc, nil); err != nil || fc.Status.Aliases[0].Alias != alias {
			t.Errorf("%s had %s and gets %v, %v", fc.Name, alias, fc.Status.Aliases, err)
		}
	}
}

// TestAnotherPeerGetsOtherAliasesAtOnce: pods may have addresses of the first one for a moment longer.
func TestAnotherPeerGetsOtherAliasesAtOnce(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(t *testing.T, pt *peersTest, first *v1alpha1.ForeignCluster){
		"its last contract ends": func(*testing.T, *peersTest, *v1alpha1.ForeignCluster) {},
		"it is forgotten": func(t *testing.T, pt *peersTest, first *v1alpha1.ForeignCluster) {
			if err := pt.Client.Delete(t.Context(), first); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := peertest.NewOther(t, "first"), peertest.NewOther(t, "second")
			fcs := []*v1alpha1.ForeignCluster{peertest.TrustedAs("first", first), peertest.TrustedAs("second", second)}
			for _, fc := range fcs {
				fc.Status.Network = &v1alpha1.PeerNetwork{Prefixes: []string{"10.0.0.0/24"}}
			}
			contract := peertest.ContractWith(first, "c-1", v1alpha1.ContractProvider)
			pt := newPeersTest(t, fcs[0], fcs[1], contract)
			pt.AliasPool = []netip.Prefix{prefix("198.18.0.0/15")}
			aliasOf := func(name string) string {
				t.Helper()
				pt.look(t, name)
				var fc v1alpha1.ForeignCluster
				if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: name}, &fc); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
				if len(fc.Status.Aliases) == 0 {
					return ""
				}
				return fc.Status.Aliases[0].Alias
			}
			had := aliasOf("first")
			if err := pt.Client.Delete(t.Context(), contract); err != nil || had == "" {
				t.Fatalf("alias %q, %v", had, err)
			}
			ends(t, pt, fcs[0])
			if left := aliasOf("first"); left != "" {
				t.Fatalf("it has %s still", left)
			}
			if err := pt.Client.Create(t.Context(), peertest.ContractWith(second, "c-2", v1alpha1.ContractProvider)); err != nil {
				t.Fatal(err)
			}
			if got := aliasOf("second"); got == "" || got == had {
				t.Errorf("the second peer gets %q, the first one had %s", got, had)
			}
		})
	}
}

// A peer without a tunnel costs nothing once it is certain that none is left.
func TestRemovedTunnelIsNotRemovedAgain(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan), tunnelOf("milan"), keysSecret(milan))
	deletes, reads := 0, 0
	pt.Client = interceptor.NewClient(pt.Client.(client.WithWatch), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			deletes++
			return c.Delete(ctx, o, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*corev1.Secret); ok {
				reads++
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	for range 3 {
		pt.look(t, "milan")
	}
	if deletes != 1 || reads != 1 || pt.hasTunnel(t, "milan") {
		t.Errorf("%d deletes, %d reads, tunnel %v", deletes, reads, pt.hasTunnel(t, "milan"))
	}
	// A contract brings a tunnel, and its end takes that away.
	contract := peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider)
	if err := errors.Join(pt.Client.Create(t.Context(), contract), pt.Client.Create(t.Context(), tunnelOf("milan"))); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if !pt.hasTunnel(t, "milan") {
		t.Fatal("the tunnel of a contract is gone")
	}
	if err := pt.Client.Delete(t.Context(), &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c-1"}}); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if pt.hasTunnel(t, "milan") {
		t.Error("the tunnel outlives its contract")
	}
}
