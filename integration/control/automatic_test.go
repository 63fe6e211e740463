package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// automaticName is the PeeringPolicy of these tests.
const automaticName = "automatic"

// findEachOther has both agents listen where a domain may lead, and a domain list both.
// Loopback addresses are not dialled for a domain, so it gives the loopback device others.
func findEachOther(t *testing.T, home, abroad *cluster) (ids map[string]peering.ClusterID) {
	t.Helper()
	ctx := t.Context()
	z := &zone{name: "clusters.example."}
	at := serveZone(t, z)
	ids = map[string]peering.ClusterID{}
	for i, c := range []*cluster{home, abroad} {
		// Of this process alone: another one may run these tests on the same machine.
		address := fmt.Sprintf("198.51.100.%d", 1+2*(os.Getpid()%127)+i)
		if out, err := exec.CommandContext(ctx, "ip", "address", "replace", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("give loopback %s: %v\n%s", address, err, out)
		}
		admin, err := c.admin(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		info, err := admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
		if err := errors.Join(err, admin.Close()); err != nil {
			t.Fatal(err)
		}
		ids[c.name] = peering.ClusterID(info.GetClusterId())
		z.list(c.name, ids[c.name], c.name, address)
		flags, peer := c.flags, c.peerAddress
		c.flags = append(slices.Clone(flags), "--discovery-domain=clusters.example", "--discovery-resolver="+at)
		c.peerAddress = address + ":7443"
		t.Cleanup(func() {
			c.flags, c.peerAddress = flags, peer
			c.kill() // others start it again, where it was
			if out, err := exec.Command("ip", "address", "del", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
				t.Errorf("take %s from loopback: %v\n%s", address, err, out)
			}
		})
	}
	if err := home.pair.both(func(c *cluster) error {
		// Tests before this one have the two forget each other, which no policy undoes. An
		// agent that runs may write it again.
		c.kill()
		forgotten := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: store.ForgottenSecret}}
		if err := c.client.Delete(ctx, forgotten); ctrlclient.IgnoreNotFound(err) != nil {
			return err
		}
		return c.start(ctx)
	}); err != nil {
		t.Fatal(err)
	}
	return ids
}

// put creates or replaces the policy of a cluster.
func (c *cluster) put(ctx context.Context, automatic v1alpha1.AutomaticPeering) error {
	// The agent writes its status at any time.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: automaticName}}
		if err := c.client.Get(ctx, ctrlclient.ObjectKeyFromObject(p), p); apierrors.IsNotFound(err) {
			p.Spec.Automatic = &automatic
			return c.client.Create(ctx, p)
		} else if err != nil {
			return err
		}
		p.Spec.Automatic = &automatic
		return c.client.Update(ctx, p)
	})
}

// stopAutomatic removes the policies, and waits until what they made is gone.
func stopAutomatic(ctx context.Context, p *pair) error {
	return p.both(func(c *cluster) error {
		p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: automaticName}}
		if err := c.client.Delete(ctx, p); ctrlclient.IgnoreNotFound(err) != nil {
			return err
		}
		return eventually.Is(ctx, 3*time.Minute, c.name+" to have ended what its policy made", c.madeNothing)
	})
}

// madeNothing returns an error as long as there is anything that a policy made.
func (c *cluster) madeNothing(ctx context.Context) error {
	for _, l := range []ctrlclient.ObjectList{&v1alpha1.ForeignClusterList{}, &v1alpha1.PeeringRequestList{}, &v1alpha1.NamespaceOffloadingList{}} {
		if err := c.client.List(ctx, l, ctrlclient.HasLabels{v1alpha1.LabelAutomatic}); err != nil {
			return err
		}
		if n := meta.LenList(l); n > 0 {
			return fmt.Errorf("there are %d of %T", n, l)
		}
	}
	return nil
}

// byPolicy returns the ForeignCluster that a cluster's policy made of another.
func (c *cluster) byPolicy(ctx context.Context, id peering.ClusterID, by string) (*v1alpha1.ForeignCluster, error) {
	all, err := list[v1alpha1.ForeignClusterList](ctx, c)
	if err != nil {
		return nil, err
	}
	var known []string
	for i := range all.Items {
		fc := &all.Items[i]
		trusted := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
		known = append(known, fmt.Sprintf("%s with %v: %+v", fc.Name, fc.Labels, trusted))
		if fc.Spec.ClusterID == string(id) && fc.Labels[v1alpha1.LabelAutomatic] == automaticName && fc.Annotations[v1alpha1.AnnotationAutomaticBy] == by {
			return fc, nil
		}
	}
	return nil, fmt.Errorf("%s is not a peer by %s of %s: known are %q", id.Short(), by, c.name, known)
}

// peeredBothWays waits until both clusters are providers of each other.
func peeredBothWays(ctx context.Context, p *pair, ids map[string]peering.ClusterID, by string) error {
	return p.both(func(c *cluster) error {
		return eventually.Is(ctx, 2*later, c.name+" to provide and to consume by policy", func(ctx context.Context) error {
			fc, err := c.byPolicy(ctx, ids[peerOf(c)], by)
			if err != nil {
				return err
			}
			if fc.Status.Role != v1alpha1.RoleProviderAndConsumer {
				return fmt.Errorf("%s is %s: %+v", fc.Name, fc.Status.Role, fc.Status.Conditions)
			}
			return conditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted)
		})
	})
}

// trustedSays waits until what a cluster says of another that it does not trust has words
// in it.
func (c *cluster) trustedSays(ctx context.Context, id peering.ClusterID, reason string, words ...string) error {
	return eventually.Is(ctx, 2*later, c.name+" to say "+reason, func(ctx context.Context) error {
		all, err := list[v1alpha1.ForeignClusterList](ctx, c)
		if err != nil {
			return err
		}
		for _, fc := range all.Items {
			if fc.Spec.ClusterID != string(id) {
				continue
			}
			is := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
			if is == nil || is.Status != metav1.ConditionFalse || is.Reason != reason {
				return fmt.Errorf("%s says %+v", fc.Name, is)
			}
			for _, word := range words {
				if !strings.Contains(is.Message, word) {
					return eventually.Permanent(fmt.Errorf("%q has no %q", is.Message, word))
				}
			}
			return nil
		}
		return errors.New("it is not known")
	})
}

// groupFailed waits until a cluster says that another one, which asked it, does not know
// the secret of its group.
func (c *cluster) groupFailed(ctx context.Context, id peering.ClusterID) error {
	return eventually.Is(ctx, 2*later, c.name+" to say that a proof failed", func(ctx context.Context) error {
		var said []string
		events, err := list[corev1.EventList](ctx, c)
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind != "PeeringPolicy" {
				continue
			}
			if e.Reason == "GroupProofFailed" && strings.Contains(e.Message, id.Short()) {
				return nil
			}
			said = append(said, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("its policy says %q", said)
	})
}

// TestClustersThatListEachOtherPeerByThemselves has two clusters find each other in a
// domain and provide for each other, one of them list the other no more, and again, and both
// end their policies. What a person made stays.
func TestClustersThatListEachOtherPeerByThemselves(t *testing.T) {
	only.Matrix(t, "more than a minute; package lan has clusters peer by themselves, and TestClustersOfADomainAreHints find each other in a domain")
	home, abroad := agents(t)
	ctx := t.Context()
	ids := findEachOther(t, home, abroad)
	t.Cleanup(func() {
		if err := stopAutomatic(context.WithoutCancel(ctx), home.pair); err != nil {
			t.Error(err)
		}
	})
	// Approval by one side makes no trust, and the status says so.
	if err := home.put(ctx, v1alpha1.AutomaticPeering{ClusterIDs: []string{string(ids[abroadName])}, Namespaces: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	if err := home.trustedSays(ctx, ids[abroadName], "NotTrustedByPeer", "spec.automatic.clusterIDs", automaticName); err != nil {
		t.Error(err)
	}
	if err := abroad.put(ctx, v1alpha1.AutomaticPeering{ClusterIDs: []string{string(ids[homeName])}}); err != nil {
		t.Fatal(err)
	}
	if err := peeredBothWays(ctx, home.pair, ids, "ClusterID"); err != nil {
		t.Fatal(err)
	}
	var offloading v1alpha1.NamespaceOffloading
	offloading.Namespace = "default"
	if err := home.get(ctx, v1alpha1.NamespaceOffloadingName, &offloading); err != nil || offloading.Labels[v1alpha1.LabelAutomatic] != automaticName {
		t.Errorf("the namespace is offloaded by %v: %v", offloading.Labels, err)
	}
	// Not listed any more: what the policy made goes, and what a person made stays.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	if err := home.client.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	person := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: v1alpha1.NamespaceOffloadingName}}
	if err := home.client.Create(ctx, person); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := home.client.Delete(context.WithoutCancel(ctx), person); ctrlclient.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	if err := home.put(ctx, v1alpha1.AutomaticPeering{ClusterIDs: []string{strings.Repeat("z", 32)}, Namespaces: []string{"mine"}}); err != nil {
		t.Fatal(err)
	}
	if err := eventually.Is(ctx, 2*later, "home to have ended what its policy made", home.madeNothing); err != nil {
		t.Fatal(err)
	}
	if err := home.get(ctx, v1alpha1.NamespaceOffloadingName, person); err != nil || person.Labels[v1alpha1.LabelAutomatic] != "" {
		t.Errorf("what a person made: %v, %v", person.Labels, err)
	}
	if err := home.put(ctx, v1alpha1.AutomaticPeering{ClusterIDs: []string{string(ids[abroadName])}}); err != nil {
		t.Fatal(err)
	}
	// Trust is established again. Home ended what it granted: abroad asks again once trust ended
	// there, too, or once its PeeringRequest is deleted.
	err := home.pair.both(func(c *cluster) error {
		return eventually.Is(ctx, 2*later, c.name+" to be trusted again", func(ctx context.Context) error {
			fc, err := c.byPolicy(ctx, ids[peerOf(c)], "ClusterID")
			if err != nil {
				return err
			}
			return errors.Join(conditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted), conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected))
		})
	})
	if err != nil {
		t.Errorf("listed again: %v", err)
	}
}

// TestClustersOfAGroupPeerByThemselves has two clusters find each other whose groups'
// secrets differ, and then not.
func TestClustersOfAGroupPeerByThemselves(t *testing.T) {
	only.Matrix(t, "package lan shows it on nodes")
	home, abroad := agents(t)
	ctx := t.Context()
	ids := findEachOther(t, home, abroad)
	secret := func(c *cluster, value string) error {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "garage"}, StringData: map[string]string{"secret": value}}
		if err := c.client.Create(ctx, s); !apierrors.IsAlreadyExists(err) {
			return err
		}
		return c.client.Update(ctx, s)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if err := stopAutomatic(ctx, home.pair); err != nil {
			t.Error(err)
		}
		_ = home.pair.both(func(c *cluster) error {
			return c.client.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "garage"}})
		})
	})
	err := home.pair.both(func(c *cluster) error {
		return errors.Join(secret(c, "the secret of "+c.name+" alone"), c.put(ctx, v1alpha1.AutomaticPeering{
			Group: &v1alpha1.PeeringGroup{Name: "garage", SecretRef: v1alpha1.SecretKey{Name: "garage", Key: "secret"}},
		}))
	})
	if err != nil {
		t.Fatal(err)
	}
	first, second := home, abroad
	if ids[abroadName] < ids[homeName] {
		first, second = abroad, home
	}
	if err := first.trustedSays(ctx, ids[peerOf(first)], "GroupSecretMismatch", "garage", "secretRef"); err != nil {
		t.Fatal(err)
	}
	// The other side was asked and has refused: trust would have come instead.
	if err := second.groupFailed(ctx, ids[first.name]); err != nil {
		t.Fatal(err)
	}
	if err := home.pair.both(func(c *cluster) error { return c.madeNothing(ctx) }); err != nil {
		t.Errorf("with other secrets: %v", err)
	}
	if err := home.pair.both(func(c *cluster) error { return secret(c, "what both of them know") }); err != nil {
		t.Fatal(err)
	}
	if err := peeredBothWays(ctx, home.pair, ids, "Group/garage"); err != nil {
		t.Error(err)
	}
}
