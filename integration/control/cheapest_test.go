package control

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/lab"
)

// another brings up a third cluster for a test, with an agent.
func another(t *testing.T, name string) *cluster {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	l, err := lab.StartLight(ctx, filepath.Join(dir, "lab"), lab.Options{Clusters: 1, FakeNodes: fakeNodes}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	c, err := newCluster(name, l.Clusters[0], filepath.Join(dir, name), world.agent)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.install(ctx, root), c.start(ctx)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last words of %s's agent:\n%s", name, c.lastWords(12))
		}
	})
	return c
}

// joined makes a cluster trust another, and waits until it is connected with it
// under its name.
func joined(ctx context.Context, home, other *cluster, name string) error {
	token, err := createToken(ctx, other)
	if err != nil {
		return err
	}
	if err := redeem(ctx, home, token); err != nil {
		return err
	}
	return eventually.Is(ctx, later, home.name+" to be connected with "+name, func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := home.get(ctx, name, &fc); err != nil {
			return err
		}
		return conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected)
	})
}

// TestTheCheapestOfTwoIsChosenThenTheOther: a request that asks any of several clusters
// takes the cheapest, and the next when that one ends the contract.
func TestTheCheapestOfTwoIsChosenThenTheOther(t *testing.T) {
	home, abroad := agents(t)
	third := another(t, "third")
	ctx := t.Context()
	w := watchContracts(t, home)
	price := func(c *cluster, price string) {
		t.Helper()
		offerBy(t, c, func(p *v1alpha1.PeeringPolicySpec) {
			p.Price, p.Notice = costs(price), lasting(10*time.Second)
		}, "cpu=8", "memory=16Gi", "pods=40")
	}
	price(abroad, "0.2")
	price(third, "0.1")
	if err := errors.Join(joined(ctx, home, abroad, abroadName), joined(ctx, home, third, "third")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{abroadName, "third"} {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := home.client.Patch(ctx, fc, ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"offers":"yes"}}}`))); err != nil {
			t.Fatal(err)
		}
	}
	// What each offers is known before a request.
	for name, price := range map[string]string{abroadName: "0.2", "third": "0.1"} {
		err := eventually.Is(ctx, soon, "the offer of "+name, func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := home.get(ctx, name, &fc); err != nil {
				return err
			}
			o := fc.Status.Offer
			if o == nil || !o.Available || o.Price == nil || string(o.Price.PerHour["cpu"]) != price || o.Resources.Cpu().String() != "8" {
				return fmt.Errorf("it is %+v", o)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	request := requestOf(requestName, "", func(s *v1alpha1.PeeringRequest) {
		s.Spec.Network, s.Spec.Resources = v1alpha1.NetworkNone, amounts("cpu=2", "memory=4Gi", "pods=10")
		s.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"offers": "yes"}}
		s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "1"}
	})
	if err := home.client.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	taken := func(from *cluster, name string) string {
		t.Helper()
		contract := ""
		err := eventually.Is(ctx, later, "a contract with "+name, func(ctx context.Context) error {
			var s v1alpha1.PeeringRequest
			if err := home.get(ctx, requestName, &s); err != nil {
				return err
			}
			if err := conditionTrue(s.Status.Conditions, v1alpha1.ConditionAccepted); err != nil {
				return err
			}
			if s.Status.ForeignCluster != name {
				return fmt.Errorf("it is with %s", s.Status.ForeignCluster)
			}
			contract = s.Status.Contract
			return errors.Join(from.get(ctx, contract, &v1alpha1.Contract{}), nodeReady(ctx, home, s.Status.Node))
		})
		if err != nil {
			t.Fatal(err)
		}
		return contract
	}
	first := taken(third, "third")
	if err := grantedIs(ctx, abroad, "0"); err != nil {
		t.Error(err)
	}
	// The cheapest withdraws.
	begin := time.Now()
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: first}}
	if err := third.client.Patch(ctx, c, ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"spec":{"termination":"Drain"}}`))); err != nil {
		t.Fatal(err)
	}
	second := taken(abroad, abroadName)
	t.Logf("the next provider's node was ready %s after the first gave notice", time.Since(begin).Round(time.Millisecond))
	// It is left out, so what follows is not that it is taken again.
	time.Sleep(3 * time.Second)
	if again := taken(abroad, abroadName); again != second {
		t.Errorf("contract %s became %s", second, again)
	}
	if err := errors.Join(grantedIs(ctx, third, "0"), grantedIs(ctx, abroad, "2")); err != nil {
		t.Error(err)
	}
	for _, twice := range w.twice() {
		t.Error(twice)
	}
	if err := home.client.Delete(ctx, request); err != nil {
		t.Fatal(err)
	}
	if err := gone(ctx, home, request, soon); err != nil {
		t.Error(err)
	}
	// Home forgets the third while its agent still lives.
	if err := home.client.DeleteAllOf(ctx, &v1alpha1.ForeignCluster{}); err != nil {
		t.Fatal(err)
	}
	if err := empty(ctx, home, later); err != nil {
		t.Error(err)
	}
}
