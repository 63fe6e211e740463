package charttest

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestThePolicyIsAsTheValuesSay(t *testing.T) {
	t.Parallel()
	policy := func(args ...string) v1alpha1.PeeringPolicySpec {
		t.Helper()
		return one[*v1alpha1.PeeringPolicy](t, render(t, args...), "default").Spec
	}
	hundred, fifty, ten, eighty, twice := int32(100), int32(50), int32(10), int32(80), int32(200)
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	// A value that is not there writes nothing, so that the definition's default holds.
	want := v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAutomatic, Limits: v1alpha1.PolicyLimits{PercentOfFree: &fifty, OvercommitPercent: &hundred},
		Renewal: v1alpha1.RenewalAutomatic, Notice: duration(time.Hour), StatementPeriod: duration(time.Hour),
		PodSecurity: "baseline", ContractDuration: duration(8760 * time.Hour),
		NodeSelectorKeys: []string{"kubernetes.io/arch", "kubernetes.io/os"},
	}
	if diff := cmp.Diff(want, policy()); diff != "" {
		t.Errorf("by default (-want +got)\n%s", diff)
	}
	want = v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAfterApproval,
		Limits: v1alpha1.PolicyLimits{
			PercentOfFree: &ten, Resources: corev1.ResourceList{"cpu": resource.MustParse("4")}, OvercommitPercent: &twice,
			Total: &v1alpha1.TotalLimits{PercentOfFree: &eighty, Resources: corev1.ResourceList{"cpu": resource.MustParse("16")}},
		},
		Price:   &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.02", "nvidia.com/gpu": "1"}},
		Renewal: v1alpha1.RenewalNever, Notice: duration(0), StatementPeriod: duration(24 * time.Hour),
		RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"fast", "slow"},
		Services: []v1alpha1.ServiceExports{
			{Namespace: "shop", Names: []string{"cart", "db"}},
			{Namespace: "media", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "edge"}}},
		},
		NodeSelectorKeys: []string{"topology.kubernetes.io/zone", "pool"},
		PodSecurity:      "restricted", ContractDuration: duration(time.Hour), NodeLabels: map[string]string{"topology.kubernetes.io/region": "it"},
	}
	got := policy("--values", filepath.Join("testdata", "policy-values.yaml"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// None is not the definition's default.
	if got := policy("--set-json", "policy.nodeSelectorKeys=[]"); got.NodeSelectorKeys == nil || len(got.NodeSelectorKeys) != 0 {
		t.Errorf("without keys consumers choose nodes by %q", got.NodeSelectorKeys)
	}
	// An upgrade that reuses the values of a chart that had fewer of them.
	if got := policy("--set", "policy.price=null", "--set", "policy.total=null", "--set", "policy.nodeSelectorKeys=null"); got.Price != nil || got.Limits.Total != nil || got.NodeSelectorKeys != nil {
		t.Errorf("got %+v", got)
	}
	if _, err := template(t, "--set-string", "policy.price.perHour.cpu=0.02"); err == nil || !strings.Contains(err.Error(), "currency") {
		t.Errorf("a price without a currency: got %v", err)
	}
	for _, set := range []string{
		"policy.price.perHour.cpu=2", "policy.price.currency=euro", "policy.overcommitPercent=0", "policy.total.percentOfFree=101",
		"policy.total.cpu=1", "policy.renewal=Sometimes", "policy.notice=later", "policy.statementPeriod=1", "policy.runtimeClasses={A b}", "policy.nodeSelectorKeys={a b}",
		"policy.services[0].names={a}", "policy.services[0].namespace=A", "policy.services[0].namespace=a,policy.services[0].names={}",
		"policy.services[0].namespace=a,policy.services[0].names={b},policy.services[0].selector.matchLabels.c=d",
	} {
		if _, err := template(t, "--set", set); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: got %v, want the schema to refuse it", set, err)
		}
	}
}
