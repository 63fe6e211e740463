package podspec

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
)

// podOf is a pod of one container and, with an amount for it, a sidecar.
func podOf(requests, limits, sidecar string) *corev1.PodSpec {
	s := &corev1.PodSpec{Containers: []corev1.Container{container(requests, limits)}}
	if sidecar != "" {
		c := container(sidecar, "")
		c.Name, c.RestartPolicy = "side", new(corev1.ContainerRestartPolicyAlways)
		s.InitContainers = []corev1.Container{c}
	}
	return s
}

func TestOnlyCPUAndMemoryOfContainersChange(t *testing.T) {
	initial := func(cpu string) *corev1.PodSpec {
		s := podOf("cpu=1", "", "cpu="+cpu)
		s.InitContainers[0].RestartPolicy = nil
		return s
	}
	whole := podOf("cpu=1", "", "")
	whole.Resources = &corev1.ResourceRequirements{Limits: container("cpu=1", "").Resources.Requests}
	for name, tc := range map[string]struct {
		was, is *corev1.PodSpec
		want    bool
		err     string
	}{
		"the same":                  {podOf("cpu=1", "", ""), podOf("cpu=1000m", "", ""), false, ""},
		"more":                      {podOf("cpu=1", "", ""), podOf("cpu=2", "", ""), true, ""},
		"less":                      {podOf("cpu=1,memory=2Gi", "", ""), podOf("cpu=1,memory=1Gi", "", ""), true, ""},
		"a limit alone":             {podOf("cpu=1", "cpu=2", ""), podOf("cpu=1", "cpu=3", ""), true, ""},
		"a sidecar":                 {podOf("cpu=1", "", "cpu=1"), podOf("cpu=1", "", "cpu=2"), true, ""},
		"an amount where none was":  {podOf("", "", ""), podOf("memory=1Gi", "", ""), true, ""},
		"an amount that is removed": {podOf("cpu=1", "", ""), podOf("", "", ""), false, "cpu is removed"},
		"a limit that is removed":   {podOf("cpu=1", "cpu=2", ""), podOf("cpu=1", "", ""), false, "cpu is removed"},
		"a device":                  {podOf("cpu=1", "", ""), podOf("cpu=1,nvidia.com/gpu=1", "", ""), false, "neither cpu nor memory"},
		"an init container":         {initial("1"), initial("2"), false, "it is an init container"},
		"the pod as a whole":        {podOf("cpu=1", "", ""), whole, false, "as a whole"},
		"another container":         {podOf("cpu=1", "", ""), podOf("cpu=1", "", "cpu=1"), false, "other containers"},
		"a sidecar that becomes an init container": {podOf("cpu=1", "", "cpu=1"), initial("1"), false, "sidecars in place of others"},
		"a sidecar that was none":                  {initial("1"), podOf("cpu=1", "", "cpu=1"), false, "sidecars in place of others"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Resized(tc.was, tc.is)
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %t, %v, want %t, %q", got, err, tc.want, tc.err)
			}
		})
	}
}

func TestAResizeKeepsWhatTheProviderAdded(t *testing.T) {
	have := podOf("cpu=1,memory=64Mi,nvidia.com/gpu=1", "memory=1Gi", "cpu=1")
	if !Resize(have, podOf("cpu=2,nvidia.com/gpu=2", "cpu=3", "cpu=1")) {
		t.Error("nothing changed")
	}
	if want := podOf("cpu=2,memory=64Mi,nvidia.com/gpu=1", "cpu=3,memory=1Gi", "cpu=1"); !equality.Semantic.DeepEqual(have, want) {
		t.Error(cmp.Diff(want, have))
	}
	if Resize(have, podOf("cpu=2", "", "")) {
		t.Error("what it has changed it")
	}
}

func TestAPodHasSettledWhenItsKubeletActed(t *testing.T) {
	want := podOf("cpu=2", "", "cpu=1")
	status := func(name, cpu string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, AllocatedResources: container("cpu="+cpu, "").Resources.Requests}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"it acted":                         {func(*corev1.Pod) {}, true},
		"it has not seen it":               {func(p *corev1.Pod) { p.Generation = 4 }, false},
		"it says no generation":            {func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }, true},
		"it defers it":                     {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending}} }, false},
		"it is about it":                   {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizeInProgress}} }, false},
		"it allocated less":                {func(p *corev1.Pod) { p.Status.ContainerStatuses[0] = status("c", "1") }, false},
		"it allocated more to a sidecar":   {func(p *corev1.Pod) { p.Status.InitContainerStatuses[0] = status("side", "2") }, false},
		"it has no status yet":             {func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, false},
		"no node has it":                   {func(p *corev1.Pod) { p.Status, p.Spec.NodeName = corev1.PodStatus{}, "" }, true},
		"the API server was not asked yet": {func(p *corev1.Pod) { p.Spec.Containers = podOf("cpu=1", "", "").Containers }, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: *want.DeepCopy(), Status: corev1.PodStatus{
				ObservedGeneration:    3,
				ContainerStatuses:     []corev1.ContainerStatus{status("c", "2")},
				InitContainerStatuses: []corev1.ContainerStatus{status("side", "1")},
			}}
			pod.Spec.NodeName = "n"
			tc.change(pod)
			if got := ResizeDone(want, pod); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

// shownPod is a pod that asks for so much and showed so much.
func shownPod(asks, showed string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: *podOf(asks, asks, "")}
	if showed != "" {
		has := container(showed, showed).Resources
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &has, AllocatedResources: has.Requests}}
	}
	return pod
}

// statusWith is a status in which the container has so much.
func statusWith(has string, conditions ...corev1.PodCondition) *corev1.PodStatus {
	s := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}}, Conditions: conditions}
	if has != "" {
		r := container(has, has).Resources
		s.ContainerStatuses[0].Resources, s.ContainerStatuses[0].AllocatedResources = &r, r.Requests
	}
	return s
}

func TestResourcesAreShownBetweenWhatHomeAskedFor(t *testing.T) {
	for name, tc := range map[string]struct{ asks, showed, says, want string }{
		"at first the request":                    {"cpu=1,memory=1Gi", "", "cpu=100,memory=1Ki", "cpu=1,memory=1Gi"},
		"before it acted the current amount":      {"cpu=3", "cpu=1", "cpu=1", "cpu=1"},
		"when it acted the request":               {"cpu=3", "cpu=1", "cpu=3", "cpu=3"},
		"a part":                                  {"cpu=3", "cpu=1", "cpu=2", "cpu=2"},
		"less was asked for and it did not act":   {"cpu=1", "cpu=3", "cpu=3", "cpu=3"},
		"it has no amount":                        {"cpu=3", "cpu=1", "", "cpu=1"},
		"it lies about more":                      {"cpu=3", "cpu=1", "cpu=1000", "cpu=3"},
		"it lies about less":                      {"cpu=3", "cpu=1", "cpu=1m", "cpu=1"},
		"it has an amount that was not requested": {"cpu=1", "cpu=1", "cpu=1,memory=1Ti", "cpu=1"},
		"other resources are as asked for":        {"cpu=1,nvidia.com/gpu=1", "cpu=1,nvidia.com/gpu=1", "cpu=1,nvidia.com/gpu=9", "cpu=1,nvidia.com/gpu=1"},
		"an added resource is shown as requested": {"cpu=1,memory=1Gi", "cpu=1", "cpu=1", "cpu=1,memory=1Gi"},
		"a container without requests":            {"", "", "cpu=1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := statusWith(tc.says)
			ShowResources(shownPod(tc.asks, tc.showed), out)
			got, want := out.ContainerStatuses[0], container(tc.want, tc.want).Resources
			if got.Resources == nil || !equality.Semantic.DeepEqual(*got.Resources, want) || !equality.Semantic.DeepEqual(got.AllocatedResources, want.Requests) {
				t.Errorf("got %v and %v, want %s", got.Resources, got.AllocatedResources, tc.want)
			}
		})
	}
	old := shownPod("cpu=1", "")
	old.Generation = 0
	out := statusWith("cpu=1")
	if ShowResources(old, out); out.ContainerStatuses[0].Resources != nil || out.ContainerStatuses[0].AllocatedResources != nil {
		t.Error("an API server without resizes would refuse the status")
	}
}

// Whatever a provider sends, and however often home changes its request, a pod shows an amount that
// was requested at some time, or one between two such amounts.
func TestAProviderCannotNameWhatWasNeverAskedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := func(what string) string {
			return resource.NewMilliQuantity(rapid.Int64Range(0, 64_000).Draw(t, what), resource.DecimalSI).String()
		}
		asks := amount("asks")
		least, most := resource.MustParse(asks), resource.MustParse(asks)
		pod := shownPod("cpu="+asks, "")
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "resized") {
				q := resource.MustParse(amount("asks"))
				pod.Spec.Containers = podOf("cpu="+q.String(), "cpu="+q.String(), "").Containers
				if q.Cmp(least) < 0 {
					least = q
				}
				if q.Cmp(most) > 0 {
					most = q
				}
			}
			out := statusWith("cpu=" + amount("says"))
			ShowResources(pod, out)
			for _, l := range []corev1.ResourceList{out.ContainerStatuses[0].AllocatedResources, out.ContainerStatuses[0].Resources.Requests, out.ContainerStatuses[0].Resources.Limits} {
				if q := l[corev1.ResourceCPU]; q.Cmp(least) < 0 || q.Cmp(most) > 0 {
					t.Fatalf("the pod shows %s, asked for were %s to %s", q.String(), least.String(), most.String())
				}
			}
			pod.Status = *out
		}
	})
}

func TestAnInfeasibleResizeCountsWhatThePodHas(t *testing.T) {
	pending := func(reason string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason}
	}
	for name, tc := range map[string]struct {
		out  *corev1.PodStatus
		want string
	}{
		"with its resources":                     {statusWith("cpu=1", pending("Infeasible")), "Infeasible"},
		"without, nothing would count":           {&corev1.PodStatus{Conditions: []corev1.PodCondition{pending("Infeasible")}}, "Deferred"},
		"deferred":                               {statusWith("cpu=1", pending("Deferred")), "Deferred"},
		"a reason that Kubernetes does not have": {statusWith("cpu=1", pending("Perhaps")), "Deferred"},
	} {
		t.Run(name, func(t *testing.T) {
			ShowResources(shownPod("cpu=3", "cpu=1"), tc.out)
			if got := tc.out.Conditions[0].Reason; got != tc.want {
				t.Errorf("the reason is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestARefusedResizeSaysWhy(t *testing.T) {
	now, before := metav1.NewTime(time.Unix(2000, 0)), metav1.NewTime(time.Unix(1000, 0))
	full := &peering.Refusal{Reason: peering.RefusedQuota, Message: "the contract is full", Retryable: true}
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		out     *corev1.PodStatus
		refusal *peering.Refusal
		want    []corev1.PodCondition
	}{
		"it may be taken later": {shownPod("cpu=3", "cpu=1"), statusWith("cpu=1"), full, []corev1.PodCondition{
			{Type: corev1.PodResizePending, Status: "True", Reason: "Deferred", Message: "the provider does not resize the pod: the contract is full", LastTransitionTime: now},
		}},
		"it is never taken": {shownPod("cpu=3", "cpu=1"), statusWith("cpu=1"), &peering.Refusal{Message: "no"}, []corev1.PodCondition{
			{Type: corev1.PodResizePending, Status: "True", Reason: "Infeasible", Message: "the provider does not resize the pod: no", LastTransitionTime: now},
		}},
		"something else was refused": {shownPod("cpu=1", "cpu=1"), statusWith("cpu=1"), full, nil},
		"it was so before": {func() *corev1.Pod {
			pod := shownPod("cpu=3", "cpu=1")
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, LastTransitionTime: before}}
			return pod
		}(), statusWith("cpu=1", corev1.PodCondition{Type: corev1.PodResizeInProgress}), full, []corev1.PodCondition{
			{Type: corev1.PodResizePending, Status: "True", Reason: "Deferred", Message: "the provider does not resize the pod: the contract is full", LastTransitionTime: before},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ShowResources(tc.pod, tc.out)
			ShowRefusedResize(tc.pod, tc.out, tc.refusal, now)
			if diff := cmp.Diff(tc.want, tc.out.Conditions); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}
