package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
)

// renewed is the condition of a PeeringRequest.
func renewed(ctx context.Context, c *cluster) (*metav1.Condition, error) {
	var s v1alpha1.PeeringRequest
	err := c.get(ctx, requestName, &s)
	return meta.FindStatusCondition(s.Status.Conditions, "Renewed"), err
}

// short is how long the contracts of these tests last. A contract begins a minute
// before it is signed, so that 45 seconds are left of it, and it is renewed half a
// minute before its end.
const short = 105 * time.Second

// TestAContractIsRenewedBeforeItsEnd: contracts that last for moments are renewed again and again,
// on the same node, with the same pods.
func TestAContractIsRenewedBeforeItsEnd(t *testing.T) {
	only.Matrix(t, "a minute and a half; internal/controller renews contracts by a clock of its tests")
	home, abroad := agents(t)
	ctx := t.Context()
	policy := offerBy(t, abroad, func(p *v1alpha1.PeeringPolicySpec) {
		p.ContractDuration, p.Price = lasting(short), costs("0.1")
	}, "cpu=8", "memory=16Gi", "pods=40")
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	request := ask("cpu=2", "memory=8Gi", "pods=20")
	request.Spec.Duration = lasting(short)
	request.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "0.25"}
	if err := home.client.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	name, err := contract(ctx, home, abroad, later)
	if err != nil {
		t.Fatal(err)
	}
	p := newLastingPod(t, home, abroad)
	var node corev1.Node
	if err := home.get(ctx, nodeName, &node); err != nil {
		t.Fatal(err)
	}
	var last *v1alpha1.Contract
	for revision := int64(2); revision <= 3; revision++ {
		held, err := agreeOn(ctx, home, abroad, name, revision, "2", 2*later)
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && !held.Spec.NotAfter.After(last.Spec.NotAfter.Time) {
			t.Errorf("revision %d ends at %s, and the one before at %s", held.Spec.Revision, held.Spec.NotAfter, last.Spec.NotAfter)
		}
		last = held
	}
	if c, err := renewed(ctx, home); err != nil || c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("the request says %+v, %v", c, err)
	}
	var same corev1.Node
	if err := home.get(ctx, nodeName, &same); err != nil || same.UID != node.UID || same.Spec.Unschedulable {
		t.Errorf("the node is another, or cordoned: %v", err)
	}
	p.lasts(t)
	// The price rises above the ceiling: the contract is not renewed, which is said,
	// and ends.
	policy.Spec.Price = costs("0.2")
	if err := abroad.client.Update(ctx, policy); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, 2*later, "the request to say why it is not renewed", func(ctx context.Context) error {
		c, err := renewed(ctx, home)
		if err != nil {
			return err
		}
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "PriceAboveCeiling" || !strings.Contains(c.Message, "EUR 0.4") {
			return fmt.Errorf("it says %+v", c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, 2*later, "the contract to end", func(ctx context.Context) error {
		var c v1alpha1.Contract
		if err := home.get(ctx, name, &c); err != nil {
			return ctrlclient.IgnoreNotFound(err)
		}
		if c.Status.Phase == "Active" {
			return fmt.Errorf("it is in force until %s", c.Spec.NotAfter)
		}
		if c.Status.Reason != "Expired" {
			return eventually.Permanent(fmt.Errorf("it ended for %s", c.Status.Reason))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestARequestWithoutRenewalIsNotRenewed: a request without renewal ends with its contract,
// and nothing else is asked for.
func TestARequestWithoutRenewalIsNotRenewed(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	offerBy(t, abroad, func(p *v1alpha1.PeeringPolicySpec) {}, "cpu=8", "memory=16Gi", "pods=40")
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	request := ask("cpu=2", "memory=8Gi", "pods=20")
	request.Spec.Renewal, request.Spec.Duration = v1alpha1.RenewalNever, lasting(90*time.Second)
	if err := home.client.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	name, err := contract(ctx, home, abroad, later)
	if err != nil {
		t.Fatal(err)
	}
	if err := acceptedIs(ctx, home, requestName, metav1.ConditionFalse, "Expired", 2*later); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // it would ask again by now
	contracts, err := list[v1alpha1.ContractList](ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	for i := range contracts.Items {
		if c := &contracts.Items[i]; c.Name != name || c.Spec.Revision != 1 || c.Status.Phase != "Closed" {
			t.Errorf("there is %s, revision %d", describe(c), c.Spec.Revision)
		}
	}
	if err := errors.Join(grantedIs(ctx, abroad, "0")); err != nil {
		t.Error(err)
	}
}
