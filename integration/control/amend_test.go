package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/peering"
)

// offerBy makes a policy of the test's own decide what a cluster offers, on terms of
// the test's own.
func offerBy(t *testing.T, c *cluster, terms func(*v1alpha1.PeeringPolicySpec), ceiling ...string) *v1alpha1.PeeringPolicy {
	t.Helper()
	all := int32(100)
	p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "aa-terms"}, Spec: v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAutomatic, PodSecurity: "baseline",
		Limits: v1alpha1.PolicyLimits{Resources: amounts(ceiling...), PercentOfFree: &all},
	}}
	terms(&p.Spec)
	if err := c.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, p) })
	return p
}

// costs is a policy's price of a processor an hour.
func costs(price string) *v1alpha1.PriceList {
	return &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": v1alpha1.Decimal(price)}}
}

func lasting(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// edit changes a PeeringRequest.
func edit(t *testing.T, c *cluster, name string, change func(*v1alpha1.PeeringRequest)) {
	t.Helper()
	err := eventually.Is(t.Context(), soon, "to change request "+name, func(ctx context.Context) error {
		var s v1alpha1.PeeringRequest
		if err := c.get(ctx, name, &s); err != nil {
			return eventually.Permanent(err)
		}
		change(&s)
		err := c.client.Update(ctx, &s)
		if apierrors.IsConflict(err) {
			return err
		}
		return eventually.Permanent(err)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// agreeOn waits until both sides hold the same revision of a contract, which is at
// least this one and grants so many processors, and returns it as the consumer has
// it.
func agreeOn(ctx context.Context, home, abroad *cluster, name string, revision int64, cpu string, limit time.Duration) (*v1alpha1.Contract, error) {
	var mine, theirs v1alpha1.Contract
	err := eventually.Is(ctx, limit, fmt.Sprintf("both sides to agree on revision %d of contract %s", revision, name), func(ctx context.Context) error {
		if err := errors.Join(home.get(ctx, name, &mine), abroad.get(ctx, name, &theirs)); err != nil {
			return err
		}
		if mine.Spec.Revision < revision || mine.Spec.Envelope != theirs.Spec.Envelope {
			return fmt.Errorf("home holds revision %d, abroad %d", mine.Spec.Revision, theirs.Spec.Revision)
		}
		for _, c := range []*v1alpha1.Contract{&mine, &theirs} {
			if c.Spec.Resources.Cpu().Cmp(resource.MustParse(cpu)) != 0 {
				return fmt.Errorf("revision %d grants %s processors, want %s", c.Spec.Revision, c.Spec.Resources.Cpu(), cpu)
			}
		}
		return nil
	})
	return &mine, err
}

// capacityIs waits until a node shows so many processors.
func capacityIs(ctx context.Context, c *cluster, node, cpu string) error {
	return eventually.Is(ctx, soon, "node "+node+" to have "+cpu+" processors", func(ctx context.Context) error {
		var n corev1.Node
		if err := c.get(ctx, node, &n); err != nil {
			return err
		}
		if got := n.Status.Allocatable.Cpu(); got.Cmp(resource.MustParse(cpu)) != 0 {
			return fmt.Errorf("it has %s", got)
		}
		return nodeReady(ctx, c, node)
	})
}

// acceptedIs waits until a request says whether it is accepted, and why.
func acceptedIs(ctx context.Context, c *cluster, request string, status metav1.ConditionStatus, says string, limit time.Duration) error {
	return eventually.Is(ctx, limit, "request "+request+" to show its outcome", func(ctx context.Context) error {
		var s v1alpha1.PeeringRequest
		if err := c.get(ctx, request, &s); err != nil {
			return err
		}
		a := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAccepted)
		if a == nil || a.Status != status || a.ObservedGeneration != s.Generation || !strings.Contains(a.Reason+": "+a.Message, says) {
			return fmt.Errorf("it is generation %d and says %+v", s.Generation, a)
		}
		return nil
	})
}

// TestAContractGrowsAndShrinks: the spec of a PeeringRequest changes, and contract, quota and
// virtual node follow; running pods keep running.
func TestAContractGrowsAndShrinks(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	offerBy(t, abroad, func(*v1alpha1.PeeringPolicySpec) {}, "cpu=8", "memory=16Gi", "pods=40")
	name := peered(t, home, abroad, "cpu=2", "memory=8Gi", "pods=20")
	namespace, remote := offloaded(t, home, abroad)
	big := func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = amounts("cpu=1500m") }
	first := remotePod(namespace, "first", big)
	if err := home.client.Create(ctx, first); err != nil {
		t.Fatal(err)
	}
	if err := runs(ctx, home, first); err != nil {
		t.Fatal(err)
	}
	second := remotePod(namespace, "second", big)
	if err := home.client.Create(ctx, second); err != nil {
		t.Fatal(err)
	}
	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources[corev1.ResourceCPU] = resource.MustParse("4") })
	begin := time.Now()
	if _, err := agreeOn(ctx, home, abroad, name, 2, "4", soon); err != nil {
		t.Fatal(err)
	}
	t.Logf("both held the second revision after %s", time.Since(begin).Round(time.Millisecond))
	if err := errors.Join(capacityIs(ctx, home, nodeName, "4"), grantedIs(ctx, abroad, "4")); err != nil {
		t.Error(err)
	}
	if err := runs(ctx, home, second); err != nil {
		t.Errorf("there is room now, and: %v", err)
	}
	// An amount that is not available changes nothing, and is reported.
	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources[corev1.ResourceCPU] = resource.MustParse("40") })
	if err := acceptedIs(ctx, home, requestName, metav1.ConditionFalse, "goes on as it is", soon); err != nil {
		t.Error(err)
	}
	if c, err := agreeOn(ctx, home, abroad, name, 2, "4", soon); err != nil || c.Spec.Revision != 2 {
		t.Errorf("revision %d: %v", c.Spec.Revision, err)
	}
	before, err := podsAbroad(ctx, abroad, remote)
	if err != nil || len(before) != 2 {
		t.Fatalf("abroad are %v, %v", before, err)
	}
	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources[corev1.ResourceCPU] = resource.MustParse("2") })
	if _, err := agreeOn(ctx, home, abroad, name, 3, "2", soon); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(acceptedIs(ctx, home, requestName, metav1.ConditionTrue, "Contracted", soon), capacityIs(ctx, home, nodeName, "2")); err != nil {
		t.Error(err)
	}
	time.Sleep(2 * time.Second) // what should not happen would happen by now
	after, err := podsAbroad(ctx, abroad, remote)
	if err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("abroad were %v and are %v: %v", before, after, err)
	}
}

// TestALostResponseIsRecovered: the provider signed the next revision, and the consumer could not
// store it. It receives it again over the session.
func TestALostResponseIsRecovered(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	offerBy(t, abroad, func(*v1alpha1.PeeringPolicySpec) {}, "cpu=8", "memory=16Gi", "pods=40")
	name := peered(t, home, abroad, "cpu=2", "memory=8Gi", "pods=20")
	fail := admissionv1.Fail
	objectMeta := metav1.ObjectMeta{Name: "control-no-revisions"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: objectMeta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"contracts"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "object.spec.revision == oldObject.spec.revision", Message: "the test says no"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: objectMeta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: objectMeta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	for _, o := range []ctrlclient.Object{policy, binding} {
		if err := home.client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { remove(t, home, o) })
	}
	err := eventually.Is(ctx, soon, "revisions to be refused at home", func(ctx context.Context) error {
		var c v1alpha1.Contract
		if err := home.get(ctx, name, &c); err != nil {
			return err
		}
		c.Spec.Revision++
		err := home.client.Update(ctx, &c, ctrlclient.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "the test says no") {
			return errors.Join(errors.New("they are not"), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources[corev1.ResourceCPU] = resource.MustParse("4") })
	err = eventually.Is(ctx, soon, "the provider to hold the second revision", func(ctx context.Context) error {
		var c v1alpha1.Contract
		if err := abroad.get(ctx, name, &c); err != nil {
			return err
		}
		if c.Spec.Revision != 2 {
			return fmt.Errorf("it holds revision %d", c.Spec.Revision)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	home.kill()
	remove(t, home, binding)
	begin := time.Now()
	if err := home.start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := agreeOn(ctx, home, abroad, name, 2, "4", soon); err != nil {
		t.Fatal(err)
	}
	t.Logf("both held the same revision %s after the consumer started again", time.Since(begin).Round(time.Millisecond))
	if err := errors.Join(capacityIs(ctx, home, nodeName, "4"), acceptedIs(ctx, home, requestName, metav1.ConditionTrue, "Contracted", soon)); err != nil {
		t.Error(err)
	}
}

// TestAProviderGivesNotice: the provider ends the contract; pods keep running for half of the
// notice, no new ones are placed there, and then they are moved.
func TestAProviderGivesNotice(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	const notice = 16 * time.Second
	offerBy(t, abroad, func(p *v1alpha1.PeeringPolicySpec) { p.Notice = lasting(notice) }, "cpu=8", "memory=16Gi", "pods=40")
	name := peered(t, home, abroad, "cpu=2", "memory=8Gi", "pods=20")
	namespace, _ := offloaded(t, home, abroad)
	p := remotePod(namespace, "stays", nil)
	if err := home.client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	if err := runs(ctx, home, p); err != nil {
		t.Fatal(err)
	}
	terminated := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := abroad.client.Patch(ctx, terminated, ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"spec":{"termination":"Drain"}}`))); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := eventually.Is(ctx, soon, "the consumer to receive the notice", func(ctx context.Context) error {
		var mine, theirs v1alpha1.Contract
		var node corev1.Node
		if err := errors.Join(home.get(ctx, name, &mine), abroad.get(ctx, name, &theirs), home.get(ctx, nodeName, &node)); err != nil {
			return err
		}
		if mine.Status.Phase != "Draining" || mine.Status.Reason != "EndedByPeer" || !mine.Status.DrainUntil.Equal(theirs.Status.DrainUntil) || !node.Spec.Unschedulable {
			return fmt.Errorf("it is %+v at home and %+v abroad, unschedulable %t", mine.Status, theirs.Status, node.Spec.Unschedulable)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the consumer's node was cordoned after %s", time.Since(begin).Round(time.Millisecond))
	// A restart in the middle forgets nothing and hurries nothing.
	if err := home.restart(ctx); err != nil {
		t.Fatal(err)
	}
	if time.Since(begin) < notice/2-time.Second {
		if err := home.get(ctx, p.Name, p); err != nil || p.DeletionTimestamp != nil {
			t.Errorf("%s after the notice the pod is gone or going: %v", time.Since(begin), err)
		}
	}
	if err := gone(ctx, home, p, soon); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took < notice/2-2*time.Second || took > notice+soon {
		t.Errorf("the pod went after %s of %s", took, notice)
	}
	if err := acceptedIs(ctx, home, requestName, metav1.ConditionFalse, "EndedByProvider", soon); err != nil {
		t.Error(err)
	}
	for _, c := range []*cluster{home, abroad} {
		err := eventually.Is(ctx, soon, "the contract to be over at "+c.name, func(ctx context.Context) error {
			var held v1alpha1.Contract
			if err := c.get(ctx, name, &held); err != nil {
				return ctrlclient.IgnoreNotFound(err)
			}
			if held.Status.Phase != peering.PhaseClosed.String() {
				return fmt.Errorf("it is %s", held.Status.Phase)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
