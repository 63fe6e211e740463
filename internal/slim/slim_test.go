package slim

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/usage"
)

func slimmed(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	o, err := Pod(p)
	if err != nil {
		t.Fatal(err)
	}
	return o.(*corev1.Pod)
}

// What is decided by pods as a cache keeps them is what would be by the pods.
func TestSlimPodsSayWhatPodsSay(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		p := fixture.RandomPod(r, "web")
		amount := func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(r.Int64N(5000), resource.DecimalSI)}
		}
		always := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []corev1.Container{
			{Name: "side", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: amount()}},
			{Name: "init", Resources: corev1.ResourceRequirements{Requests: amount()}},
		}
		p.Spec.Containers[0].Name = "main"
		p.Spec.HostNetwork, p.Status.PodIPs = r.IntN(2) == 0, []corev1.PodIP{{IP: "10.0.0.9"}, {IP: "fd00::9"}}
		if r.IntN(2) == 0 {
			p.Spec.Overhead = amount()
		}
		if r.IntN(2) == 0 {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", AllocatedResources: amount(), Resources: &corev1.ResourceRequirements{Requests: amount()},
			}}
		}
		if r.IntN(2) == 0 {
			p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue}}
		}
		if r.IntN(2) == 0 {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}
		}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"},
			}}}},
		}}}
		slim := slimmed(t, p.DeepCopy())
		if !equality.Semantic.DeepEqual(market.Requests(&p), market.Requests(slim)) || slim.Spec.NodeName != p.Spec.NodeName ||
			market.OffloadedBy(slim) != market.OffloadedBy(&p) || slim.Status.Phase != p.Status.Phase ||
			slim.Spec.HostNetwork != p.Spec.HostNetwork || !slices.Equal(slim.Status.PodIPs, p.Status.PodIPs) {
			t.Errorf("seed %d: it takes %v of %s, want %v of %s", seed, market.Requests(slim), slim.Spec.NodeName, market.Requests(&p), p.Spec.NodeName)
		}
		// By it pods are known that wait for a virtual node.
		if p.Spec.NodeName == "" && market.OffloadedBy(&p) == "" && !equality.Semantic.DeepEqual(slim.Spec.Affinity, p.Spec.Affinity) {
			t.Errorf("seed %d: its affinity is %v", seed, slim.Spec.Affinity)
		}
		if market.OffloadedBy(&p) != "" {
			continue // they are on no virtual node
		}
		used, left := usage.OfPods([]corev1.Pod{p}, nil)
		usedSlim, leftSlim := usage.OfPods([]corev1.Pod{*slim}, nil)
		if diff := cmp.Diff(used, usedSlim); diff != "" || left != leftSlim {
			t.Errorf("seed %d: use (-pod +slim), %d and %d left:\n%s", seed, left, leftSlim, diff)
		}
	}
}

// How large the pods of a peer are costs the cache nothing.
func TestSlimPodsOfPeersAreSmall(t *testing.T) {
	t.Parallel()
	p := fixture.Pod("n0", func(p *corev1.Pod) {
		p.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelContract: "c-1"}
		for i := range 1000 {
			p.Labels[fmt.Sprint("l", i)] = "x"
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i)})
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("c", i))})
		}
		for i := range 255 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i)})
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint("c", i)})
		}
	})
	if n := slimmed(t, &p).Size(); n > 512 {
		t.Errorf("it has %d bytes, of %d", n, p.Size())
	}
}

func TestSlimServiceKeepsWhatIsExported(t *testing.T) {
	t.Parallel()
	slim := Service("entente-system")
	for name, s := range map[string]*corev1.Service{
		"one with an address": fixture.Service("shop", "cart", fixture.Labelled("tier", "edge"), func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("kubernetes.io/h2c") }),
		"a headless one":      fixture.Service("shop", "db", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
		"one without ports":   fixture.Service("shop", "db", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports = corev1.ClusterIPNone, nil }),
		"another name": fixture.Service("shop", "x", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		}),
		"one that ends":         fixture.Service("shop", "x", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: peertest.Now} }),
		"one without protocols": fixture.Service("shop", "x", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "" }),
	} {
		s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		whole := s.DeepCopy()
		kept, err := slim(s)
		got, ok := kept.(*corev1.Service)
		if err != nil || !ok {
			t.Fatalf("%s: %v, %v", name, kept, err)
		}
		if !market.OfferedService(got).Equal(market.OfferedService(whole)) || market.NeverExported(got) != market.NeverExported(whole) {
			t.Errorf("%s: the announcement would differ: %+v", name, got)
		}
		if got.UID != whole.UID || got.ResourceVersion != whole.ResourceVersion {
			t.Errorf("%s: it is another object: %+v", name, got.ObjectMeta)
		}
		if got.Annotations != nil || got.ManagedFields != nil || got.Spec.Selector != nil || got.Spec.ClusterIPs != nil || got.Spec.ExternalName != "" {
			t.Errorf("%s: kept %+v", name, got)
		}
	}
	own := fixture.Service("entente-system", "entente-peer")
	want := own.DeepCopy()
	want.ManagedFields = nil
	if got, err := slim(own); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("of the agent's own namespace %+v is kept, %v", got, err)
	}
	if got, err := slim(&corev1.Node{}); err != nil || got == nil {
		t.Errorf("of something else %v is kept, %v", got, err)
	}
}

func TestNamesDropAnnotationsOfSecrets(t *testing.T) {
	t.Parallel()
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "token", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"stringData":{"token":"ent1.secret"}}`},
	}}
	got, err := Names(m)
	if err != nil || got != any(m) || m.Name != "token" || m.ResourceVersion != "7" || m.Annotations != nil || m.ManagedFields != nil {
		t.Errorf("remembered is %+v, %v", got, err)
	}
}
