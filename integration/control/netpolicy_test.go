package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// policyFollows has a NetworkPolicy select a pod abroad: it is refused, and said, until the provider's policy
// allows it; then it is made there, follows home, and goes.
func policyFollows(t *testing.T, home, abroad *cluster, namespace, remote string) {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "names-only"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolUDP), Port: new(intstr.FromInt32(53))}}}},
	}}
	if err := home.client.Create(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	message := func(want string) error {
		return eventually.Is(t.Context(), soon, "the NamespaceOffloading to say "+want, func(ctx context.Context) error {
			list, err := list[v1alpha1.NamespaceOffloadingList](ctx, home, inNamespace(namespace))
			if err != nil {
				return err
			}
			if len(list.Items) != 1 || len(list.Items[0].Status.Clusters) != 1 {
				return fmt.Errorf("there are %+v", list.Items)
			}
			if got := list.Items[0].Status.Clusters[0].Message; !strings.Contains(got, want) || want == "" && got != "" {
				return fmt.Errorf("it says %q", got)
			}
			return nil
		})
	}
	if err := message("networkPolicies: Allowed"); err != nil {
		t.Fatal(err)
	}
	err := eventually.Is(t.Context(), soon, "an event of the policy", func(ctx context.Context) error {
		all, err := list[corev1.EventList](ctx, home, inNamespace(namespace))
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.UID == np.UID && e.Reason == "NetworkPolicyNotApplied" && e.Type == corev1.EventTypeWarning
		}) {
			return errors.New("there is none")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	policy := offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	if err := abroad.client.Patch(t.Context(), policy, ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"spec":{"networkPolicies":"Allowed"}}`))); err != nil {
		t.Fatal(err)
	}
	there := func(what string, is func(*networkingv1.NetworkPolicy) bool) error {
		return eventually.Is(t.Context(), later, "a policy abroad "+what, func(ctx context.Context) error {
			all, err := list[networkingv1.NetworkPolicyList](ctx, abroad, inNamespace(remote), managed())
			if err != nil {
				return err
			}
			if len(all.Items) != 1 || all.Items[0].Name != "home-names-only" || !is(&all.Items[0]) {
				return fmt.Errorf("there are %+v", all.Items)
			}
			return nil
		})
	}
	// These clusters have no DNS, so no rule is added for that.
	opens := func(np *networkingv1.NetworkPolicy) bool {
		return len(np.Spec.Egress) == 1 && len(np.Spec.Egress[0].To) > 1 && len(np.Spec.Ingress) == 0 && len(np.Spec.PolicyTypes) == 2
	}
	if err := errors.Join(there("that opens what it opens at home", opens), message("")); err != nil {
		t.Error(err)
	}
	np.Spec.Egress = nil
	if err := home.client.Update(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	if err := there("that closes all", func(np *networkingv1.NetworkPolicy) bool { return len(np.Spec.Egress)+len(np.Spec.Ingress) == 0 }); err != nil {
		t.Error(err)
	}
	if err := home.client.Delete(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(t.Context(), soon, "no policy abroad", func(ctx context.Context) error {
		all, err := list[networkingv1.NetworkPolicyList](ctx, abroad, inNamespace(remote), managed())
		if err != nil {
			return err
		}
		if len(all.Items) > 0 {
			return fmt.Errorf("there are %+v", all.Items)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
