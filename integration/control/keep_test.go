package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// TestAContractThatTheConsumerLostIsRecovered: the provider signed, and the consumer
// could not keep what it got; when it asks again, seconds later, it gets that
// contract and no second one.
func TestAContractThatTheConsumerLostIsRecovered(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	w := watchContracts(t, home, abroad)
	fail := admissionv1.Fail
	meta := metav1.ObjectMeta{Name: "control-no-contracts"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"contracts"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "false", Message: "the test says no"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	for _, o := range []ctrlclient.Object{policy, binding} {
		if err := home.client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { remove(t, home, o) })
	}
	err := eventually.Is(ctx, soon, "contracts to be refused at home", func(ctx context.Context) error {
		err := home.client.Create(ctx, contractWith(func(*v1alpha1.Contract) {}), ctrlclient.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "the test says no") {
			return errors.Join(errors.New("they are not"), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := home.client.Create(ctx, ask("cpu=4", "memory=8Gi", "pods=20")); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, soon, "the provider to sign", func(ctx context.Context) error { return grantedIs(ctx, abroad, "4") })
	if err != nil {
		t.Fatal(err)
	}
	// By now the consumer's clock says another second, and what it would sign is
	// another contract.
	time.Sleep(1100 * time.Millisecond)
	remove(t, home, binding)
	if _, err := contract(ctx, home, abroad, later); err != nil {
		t.Error(err)
	}
	if err := grantedIs(ctx, abroad, "4"); err != nil {
		t.Error(err)
	}
	for _, twice := range w.twice() {
		t.Error(twice)
	}
}
