package market

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestAllProblemsOfAPolicyAreFound(t *testing.T) {
	t.Parallel()
	amounts := func(name, amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
	}
	p := readPolicy(&v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all wrong"}, Spec: v1alpha1.PeeringPolicySpec{
		ContractDuration: &metav1.Duration{Duration: -5 * time.Hour},
		Notice:           &metav1.Duration{Duration: -time.Hour},
		ClusterSelector:  &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}},
		Limits: v1alpha1.PolicyLimits{
			Resources: amounts("cpuu", "2"),
			Total:     &v1alpha1.TotalLimits{Resources: amounts("cpu", "-1")},
		},
		Price: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"storage": "0.1", "nvidia.com/gpu": "2"}},
		LimitRange: &v1alpha1.LimitRange{Container: &v1alpha1.ContainerLimitRange{
			Default: v1alpha1.LimitedResources{"cpu": resource.MustParse("2"), "memory": resource.MustParse("2Gi")},
			Max:     v1alpha1.LimitedResources{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
		}},
	}})
	want := []string{"contractDuration:", "notice:", `"cpuu"`, "limits.total.resources", `"storage"`, "of cpu default is 2", "of memory default is", "clusterSelector"}
	got := p.Problems()
	if len(got) != len(want) {
		t.Fatalf("%d problems, want %d: %q", len(got), len(want), got)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("it says %q, want %q", got[i], want[i])
		}
	}
	if _, err := p.Checked(); err == nil {
		t.Error("it can be followed")
	}
}

func TestResourcesOfNodesMayBeLimited(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"cpu": true, "memory": true, "ephemeral-storage": true, "pods": true, "hugepages-2Mi": true, "nvidia.com/gpu": true,
		"fast.storageclass.storage.k8s.io/requests.storage": true,
		"cpuu": false, "storage": false, "requests.cpu": false, "gpu": false,
	} {
		p := &v1alpha1.PeeringPolicy{Spec: v1alpha1.PeeringPolicySpec{Pools: []v1alpha1.NodePool{nodePool("a", "kind", "x")}}}
		p.Spec.Pools[0].Limits = &v1alpha1.PolicyLimits{Resources: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}}
		read := readPolicy(p)
		if got := read.Problems(); (len(got) == 0) != valid {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestNamesOfClassesThatDoNotExistAreDoubted(t *testing.T) {
	t.Parallel()
	p := readPolicy(&v1alpha1.PeeringPolicy{Spec: v1alpha1.PeeringPolicySpec{
		RuntimeClasses: []string{"gvisor", "kata"}, StorageClasses: []string{"fast"},
		Limits: v1alpha1.PolicyLimits{Resources: corev1.ResourceList{"slow.storageclass.storage.k8s.io/requests.storage": resource.MustParse("1Gi")}},
	}})
	if got := p.Problems(); len(got) > 0 {
		t.Errorf("its problems are %q", got)
	}
	want := []string{"this cluster has no runtime class kata", "this cluster has no storage class slow"}
	if diff := cmp.Diff(want, p.Doubts([]string{"gvisor"}, []string{"fast"})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
