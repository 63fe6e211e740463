package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// cutWithin is how long a denial may take to end everything, on both sides.
const cutWithin = 10 * time.Second

// idOf returns a cluster's ID.
func idOf(t *testing.T, c *cluster) string {
	t.Helper()
	info, err := call(t.Context(), c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.GetInfoResponse, error) {
		return a.GetInfo(ctx, &ententev1.GetInfoRequest{})
	})
	if err != nil {
		t.Fatal(err)
	}
	return info.GetClusterId()
}

// trustedIs waits until the Trusted condition of the other cluster has a reason.
func trustedIs(ctx context.Context, c *cluster, limit time.Duration, reasons ...string) error {
	return eventually.Is(ctx, limit, fmt.Sprintf("Trusted at %s to be %v", c.name, reasons), func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := c.get(ctx, peerOf(c), &fc); err != nil {
			return err
		}
		trusted := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
		if trusted == nil {
			return errors.New("there is no such condition")
		}
		if slices.Contains(reasons, trusted.Reason) {
			return nil
		}
		return fmt.Errorf("it is %s: %s: %s", trusted.Status, trusted.Reason, trusted.Message)
	})
}

func decide(ctx context.Context, c *cluster, decision v1alpha1.Decision) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"decision": decision}})
	if err != nil {
		return err
	}
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: peerOf(c)}}
	return c.client.Patch(ctx, fc, ctrlclient.RawPatch(types.MergePatchType, patch))
}

// applied applies a manifest of the other cluster, as Git would.
func (c *cluster) applied(ctx context.Context, spec map[string]any) error {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ForeignCluster"))
	o.SetName(peerOf(c))
	return c.client.Apply(ctx, ctrlclient.ApplyConfigurationFromUnstructured(o), ctrlclient.FieldOwner("gitops"))
}

// eventsOf returns the reasons of the events about the other cluster.
func eventsOf(ctx context.Context, c *cluster) (map[string]int, error) {
	list, err := list[eventsv1.EventList](ctx, c)
	out := map[string]int{}
	for _, e := range list.Items {
		if e.Regarding.Kind == "ForeignCluster" && e.Regarding.Name == peerOf(c) {
			out[e.Reason]++
		}
	}
	return out, err
}

func happened(ctx context.Context, c *cluster, reasons ...string) error {
	return eventually.Is(ctx, soon, fmt.Sprintf("events %v at %s", reasons, c.name), func(ctx context.Context) error {
		got, err := eventsOf(ctx, c)
		if err != nil {
			return err
		}
		for _, reason := range reasons {
			if got[reason] == 0 {
				return fmt.Errorf("there are %v", got)
			}
		}
		return nil
	})
}

func TestTwoManifestsThatNameEachOtherEstablishTrust(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	// Only home says where the other can be dialled.
	manifests := map[string]map[string]any{
		homeName:   {"clusterID": idOf(t, abroad), "decision": "Approved", "endpoints": []any{abroad.peerAddress}},
		abroadName: {"clusterID": idOf(t, home), "decision": "Approved"},
	}
	for _, first := range []*cluster{home, abroad} {
		t.Run(first.name+" first", func(t *testing.T) {
			second := home
			if first == home {
				second = abroad
			}
			if err := first.applied(ctx, manifests[first.name]); err != nil {
				t.Fatal(err)
			}
			if err := trustedIs(ctx, first, soon, "AwaitingPeer", "NotTrustedByPeer", "AwaitingIntroduction"); err != nil {
				t.Fatal(err)
			}
			if err := second.applied(ctx, manifests[second.name]); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			err := home.pair.both(func(c *cluster) error {
				return errors.Join(connected(ctx, c, later), trustedIs(ctx, c, soon, "Approved"), happened(ctx, c, "Approved", "Connected"))
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("trust was mutual %.1fs after the second manifest", time.Since(begin).Seconds())
			for _, c := range []*cluster{home, abroad} {
				fcs, err := list[v1alpha1.ForeignClusterList](ctx, c)
				if err != nil || len(fcs.Items) != 1 || fcs.Items[0].Name != peerOf(c) || fcs.Items[0].Status.Session == nil {
					t.Errorf("%s knows %d clusters: %v", c.name, len(fcs.Items), err)
				}
			}
			if err := part(ctx, home, abroad, later); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestForgottenPeersStayForgotten: two clusters that approved each other, and so
// introduce themselves to each other when they are not trusted, forget each other.
func TestForgottenPeersStayForgotten(t *testing.T) {
	only.Matrix(t, "more than a minute; internal/controller has clusters forgotten that introduce themselves")
	home, abroad := agents(t)
	ctx := t.Context()
	// Home introduces itself, and abroad learns by that where home can be dialled.
	approve := func() error {
		return errors.Join(
			abroad.applied(ctx, map[string]any{"clusterID": idOf(t, home), "decision": "Approved"}),
			home.applied(ctx, map[string]any{"clusterID": idOf(t, abroad), "decision": "Approved", "endpoints": []any{abroad.peerAddress}}),
		)
	}
	settled := func(c *cluster) error {
		return eventually.Is(ctx, soon, c.name+" to be done with the introduction", func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := c.get(ctx, peerOf(c), &fc); err != nil {
				return err
			}
			if fc.Status.Introduction != nil || len(fc.Spec.Endpoints) == 0 {
				return fmt.Errorf("it is known as %+v, %+v", fc.Spec, fc.Status.Introduction)
			}
			return nil
		})
	}
	oneAfterTheOther := func(first, second *cluster) func() error {
		return func() error {
			if err := errors.Join(forget(ctx, first), empty(ctx, first, soon)); err != nil {
				return err
			}
			if err := trustedIs(ctx, second, soon, "ForgottenByPeer"); err != nil {
				return err
			}
			if err := staysEmpty(ctx, first, 10*time.Second); err != nil {
				return err
			}
			return errors.Join(forget(ctx, second), empty(ctx, second, soon))
		}
	}
	for name, forgetBoth := range map[string]func() error{
		"at the same time": func() error {
			return home.pair.both(func(c *cluster) error { return errors.Join(forget(ctx, c), empty(ctx, c, soon)) })
		},
		"home first":   oneAfterTheOther(home, abroad),
		"abroad first": oneAfterTheOther(abroad, home),
	} {
		t.Run(name, func(t *testing.T) {
			if err := approve(); err != nil {
				t.Fatal(err)
			}
			if err := home.pair.both(func(c *cluster) error { return errors.Join(connected(ctx, c, later), settled(c)) }); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := forgetBoth(); err != nil {
				t.Fatal(err)
			}
			t.Logf("both forgot each other within %.1fs", time.Since(begin).Seconds())
			if err := home.pair.both(func(c *cluster) error { return staysEmpty(ctx, c, 10*time.Second) }); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			if err := join(ctx, home, abroad); err != nil {
				t.Fatal(err)
			}
			t.Logf("a new token joined them within %.1fs", time.Since(begin).Seconds())
			if err := part(ctx, home, abroad, later); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// staysEmpty checks for a time that a cluster knows no other.
func staysEmpty(ctx context.Context, c *cluster, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		fcs, err := list[v1alpha1.ForeignClusterList](ctx, c)
		if err != nil {
			return err
		}
		if len(fcs.Items) > 0 {
			return fmt.Errorf("%s knows %s again: %+v", c.name, fcs.Items[0].Name, fcs.Items[0].Spec)
		}
	}
	return nil
}

func TestAManifestWithATokenJoinsOnce(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	manifest := map[string]any{"joinToken": map[string]any{"name": "abroad-token", "key": "token"}}
	if err := home.applied(ctx, manifest); err != nil {
		t.Fatal(err)
	}
	if err := trustedIs(ctx, home, soon, "TokenMissing"); err != nil {
		t.Fatal(err)
	}
	secret := func(text string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "abroad-token"}, StringData: map[string]string{"token": text}}
	}
	own, err := createToken(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	s := secret(own)
	if err := home.client.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = home.client.Delete(context.WithoutCancel(ctx), secret("")) })
	if err := trustedIs(ctx, home, later, "PeerIsSelf"); err != nil {
		t.Fatal(err)
	}
	token, err := createToken(ctx, abroad)
	if err != nil {
		t.Fatal(err)
	}
	s.StringData = map[string]string{"token": token}
	if err := home.client.Update(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := home.pair.both(func(c *cluster) error { return connected(ctx, c, 2*later) }); err != nil {
		t.Fatal(err)
	}
	var joined v1alpha1.ForeignCluster
	if err := home.get(ctx, abroadName, &joined); err != nil {
		t.Fatal(err)
	}
	if joined.Spec.ClusterID != idOf(t, abroad) || joined.Status.Source != v1alpha1.SourceToken {
		t.Errorf("it joined as %+v, found by %s", joined.Spec, joined.Status.Source)
	}
	if err := home.client.Delete(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := home.applied(ctx, manifest); err != nil {
		t.Fatal(err)
	}
	if err := home.restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := connected(ctx, home, later); err != nil {
		t.Fatal(err)
	}
	var again v1alpha1.ForeignCluster
	if err := home.get(ctx, abroadName, &again); err != nil || again.Spec.TrustBundle != joined.Spec.TrustBundle {
		t.Errorf("applied again it is %+v, %v", again.Spec, err)
	}
	if err := trustedIs(ctx, home, soon, "Joined"); err != nil {
		t.Error(err)
	}
}

func TestACodeIsComparedBeforeTrust(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	met, err := call(ctx, home, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.IntroducePeerResponse, error) {
		return a.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{Endpoint: abroad.peerAddress})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := home.pair.both(func(c *cluster) error { return trustedIs(ctx, c, soon, "AwaitingApproval") }); err != nil {
		t.Fatal(err)
	}
	codes := map[string]string{}
	for _, c := range []*cluster{home, abroad} {
		var fc v1alpha1.ForeignCluster
		if err := c.get(ctx, peerOf(c), &fc); err != nil {
			t.Fatal(err)
		}
		if fc.Spec.TrustBundle != "" || fc.Status.Source != v1alpha1.SourceIntroduction {
			t.Errorf("%s knows it as %+v %+v", c.name, fc.Spec, fc.Status)
		}
		codes[c.name] = fc.Status.Introduction.Code
	}
	if codes[homeName] != codes[abroadName] || len(codes[homeName]) != 6 || met.GetPeer().GetCode() != codes[homeName] {
		t.Errorf("the codes are %v, and home received %q", codes, met.GetPeer().GetCode())
	}
	if err := decide(ctx, home, v1alpha1.DecisionApproved); err != nil {
		t.Fatal(err)
	}
	if err := trustedIs(ctx, home, soon, "AwaitingPeer", "NotTrustedByPeer"); err != nil {
		t.Fatal(err)
	}
	if err := decide(ctx, abroad, v1alpha1.DecisionApproved); err != nil {
		t.Fatal(err)
	}
	err = home.pair.both(func(c *cluster) error {
		return errors.Join(connected(ctx, c, later), trustedIs(ctx, c, soon, "Approved"), happened(ctx, c, "Introduced", "Approved"))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestADenialCutsBothSidesAndANewTokenHeals(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	name, last := peered(t, home, abroad, "cpu=1", "pods=5"), ""
	for _, who := range []struct{ denies, denied *cluster }{{abroad, home}, {home, abroad}} {
		t.Run(who.denies.name+" denies", func(t *testing.T) {
			begin := time.Now()
			if err := decide(ctx, who.denies, v1alpha1.DecisionDenied); err != nil {
				t.Fatal(err)
			}
			err := errors.Join(
				trustedIs(ctx, who.denies, cutWithin, "Denied"),
				trustedIs(ctx, who.denied, cutWithin-time.Since(begin), "RevokedByPeer"),
				eventually.Is(ctx, cutWithin-time.Since(begin), "everything to end", func(ctx context.Context) error { return cut(ctx, home, abroad, name) }),
			)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("everything ended within %.1fs", time.Since(begin).Seconds())
			if err := errors.Join(happened(ctx, who.denies, "Denied"), happened(ctx, who.denied, "Revoked")); err != nil {
				t.Error(err)
			}
			// It stays so, however often the other dials and is restarted.
			if err := who.denied.restart(ctx); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(trustedIs(ctx, who.denied, soon, "RevokedByPeer"), trustedIs(ctx, who.denies, soon, "Denied")); err != nil {
				t.Error(err)
			}
			// The side that was denied introduces itself in vain.
			_, err = call(ctx, who.denied, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.IntroducePeerResponse, error) {
				return a.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{Endpoint: who.denies.peerAddress})
			})
			if err == nil {
				t.Error("who was denied introduced itself")
			}
			// An old token does not undo it.
			if last != "" {
				if err := redeem(ctx, who.denied, last); err == nil {
					t.Error("who was denied redeemed the token of before")
				}
				if err := trustedIs(ctx, who.denies, soon, "Denied"); err != nil {
					t.Error(err)
				}
			}
			// A new one, of whichever side, is consent.
			token, err := createToken(ctx, who.denied)
			if err != nil {
				t.Fatal(err)
			}
			if err := redeem(ctx, who.denies, token); err != nil {
				t.Fatal(err)
			}
			last = token
			if err := home.pair.both(func(c *cluster) error {
				return errors.Join(connected(ctx, c, later), trustedIs(ctx, c, soon, "Joined"))
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("approval heals too", func(t *testing.T) {
		if err := decide(ctx, abroad, v1alpha1.DecisionDenied); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(trustedIs(ctx, abroad, cutWithin, "Denied"), trustedIs(ctx, home, cutWithin, "RevokedByPeer")); err != nil {
			t.Fatal(err)
		}
		if err := decide(ctx, abroad, v1alpha1.DecisionApproved); err != nil {
			t.Fatal(err)
		}
		if err := home.pair.both(func(c *cluster) error { return connected(ctx, c, later) }); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(trustedIs(ctx, abroad, soon, "Approved"), trustedIs(ctx, home, soon, "Joined")); err != nil {
			t.Error(err)
		}
	})
}

func TestAPeerThatWasAwayLearnsOfADenialWhenItDials(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	name := peered(t, home, abroad, "cpu=1", "pods=5")
	home.kill()
	if err := decide(ctx, abroad, v1alpha1.DecisionDenied); err != nil {
		t.Fatal(err)
	}
	if err := trustedIs(ctx, abroad, cutWithin, "Denied"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // a refusal in the second in which they joined may be older than that
	if err := home.start(ctx); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := errors.Join(
		trustedIs(ctx, home, cutWithin, "RevokedByPeer"),
		eventually.Is(ctx, cutWithin-time.Since(begin), "everything to end", func(ctx context.Context) error { return cut(ctx, home, abroad, name) }),
		happened(ctx, home, "Revoked"),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("everything ended within %.1fs", time.Since(begin).Seconds())
}

func TestPeersFollowARollover(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	// The old root is removed with its certificates, and until then no other rollover is possible,
	// not in the next test either.
	shortLived(t, home, abroad)
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	held := func(ctx context.Context) (identity.Bundle, error) {
		var fc v1alpha1.ForeignCluster
		if err := abroad.get(ctx, homeName, &fc); err != nil {
			return identity.Bundle{}, err
		}
		return identity.ReadBundlePEM(peering.ClusterID(fc.Spec.ClusterID), []byte(fc.Spec.TrustBundle))
	}
	// The cluster may have replaced its key before.
	before, err := held(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = call(ctx, home, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.RolloverIdentityResponse, error) {
		return a.RolloverIdentity(ctx, &ententev1.RolloverIdentityRequest{})
	})
	if err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, soon, "abroad to hold the new root", func(ctx context.Context) error {
		b, err := held(ctx)
		if err != nil {
			return err
		}
		if len(b.Succession) != len(before.Succession)+1 {
			return fmt.Errorf("it holds %d roots and %d successions", len(b.Roots), len(b.Succession))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := home.restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := home.pair.both(func(c *cluster) error {
		return errors.Join(connected(ctx, c, later), trustedIs(ctx, c, soon, "Joined"))
	}); err != nil {
		t.Error(err)
	}
	err = eventually.Is(ctx, later, "abroad to hold the new root alone", func(ctx context.Context) error {
		b, err := held(ctx)
		if err == nil && len(b.Roots) != 1 {
			err = fmt.Errorf("it holds %d roots", len(b.Roots))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// cut reports whether nothing is left between two clusters: no session, no contract
// in force, no virtual node.
func cut(ctx context.Context, home, abroad *cluster, contract string) error {
	for _, c := range []*cluster{home, abroad} {
		var fc v1alpha1.ForeignCluster
		if err := c.get(ctx, peerOf(c), &fc); err != nil {
			return err
		}
		if fc.Status.Session != nil || conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) == nil {
			return fmt.Errorf("%s has a session", c.name)
		}
		var held v1alpha1.Contract
		if err := c.get(ctx, contract, &held); err == nil && held.Status.Phase != peering.PhaseClosed.String() {
			return fmt.Errorf("the contract is %q at %s", held.Status.Phase, c.name)
		}
		tunnels, err := list[v1alpha1.TunnelList](ctx, c)
		if err != nil {
			return err
		}
		if len(tunnels.Items) > 0 {
			return fmt.Errorf("%d tunnels at %s", len(tunnels.Items), c.name)
		}
	}
	nodes, err := list[corev1.NodeList](ctx, home, ctrlclient.HasLabels{v1alpha1.LabelVirtualNode})
	if err != nil {
		return err
	}
	if len(nodes.Items) > 0 {
		return fmt.Errorf("%d virtual nodes", len(nodes.Items))
	}
	return nil
}
