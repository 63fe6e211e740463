package limitrange

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// amounts reads "cpu=1 memory=1Gi".
func amounts(text string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for said := range strings.FieldsSeq(text) {
		name, q, _ := strings.Cut(said, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func limited(text string) api.LimitedResources { return api.LimitedResources(amounts(text)) }

func asks(requests, limits string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}
}

func container(name, requests, limits string) corev1.Container {
	return corev1.Container{Name: name, Resources: asks(requests, limits)}
}

func TestContainersGetWhatTheyDoNotSay(t *testing.T) {
	t.Parallel()
	l := &api.LimitRange{Container: &api.ContainerLimitRange{
		DefaultRequest: limited("cpu=100m memory=64Mi"), Default: limited("memory=256Mi"),
	}}
	for name, tc := range map[string]struct {
		limits   *api.LimitRange
		pod      *corev1.ResourceRequirements
		is, want corev1.ResourceRequirements
	}{
		"a container without resources":           {l, nil, asks("", ""), asks("cpu=100m memory=64Mi", "memory=256Mi")},
		"a container with all resources":          {l, nil, asks("cpu=1 memory=1Gi", "cpu=2 memory=2Gi"), asks("cpu=1 memory=1Gi", "cpu=2 memory=2Gi")},
		"a limit is a request, as everywhere":     {l, nil, asks("", "cpu=2 memory=32Mi"), asks("cpu=2 memory=32Mi", "cpu=2 memory=32Mi")},
		"a limit is not below the request":        {l, nil, asks("memory=1Gi", ""), asks("cpu=100m memory=1Gi", "memory=1Gi")},
		"a request of 0 is a request":             {l, nil, asks("cpu=0 memory=0", ""), asks("cpu=0 memory=0", "memory=256Mi")},
		"other resources are left alone":          {l, nil, asks("", "nvidia.com/gpu=1"), asks("cpu=100m memory=64Mi nvidia.com/gpu=1", "memory=256Mi nvidia.com/gpu=1")},
		"what the pod asks for as a whole":        {l, &corev1.ResourceRequirements{Requests: amounts("memory=1Gi")}, asks("", ""), asks("cpu=100m", "")},
		"or is limited to":                        {l, &corev1.ResourceRequirements{Limits: amounts("cpu=1 memory=1Gi")}, asks("", ""), asks("", "")},
		"a contract without a limit range":        {nil, nil, asks("", ""), asks("", "")},
		"one that speaks of pods alone":           {&api.LimitRange{Pod: &api.PodLimitRange{Max: limited("cpu=1")}}, nil, asks("", ""), asks("", "")},
		"a limit of a resource without a default": {&api.LimitRange{Container: &api.ContainerLimitRange{DefaultRequest: limited("memory=0"), Default: limited("memory=1Gi")}}, nil, asks("", ""), asks("memory=0", "memory=1Gi")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := &corev1.PodSpec{
				Resources:      tc.pod,
				InitContainers: []corev1.Container{{Name: "init", Resources: *tc.is.DeepCopy()}},
				Containers:     []corev1.Container{{Name: "web", Resources: *tc.is.DeepCopy()}},
			}
			before := spec.DeepCopy()
			filled := Filled(spec, tc.limits)
			if !equality.Semantic.DeepEqual(spec, before) {
				t.Error("the pod itself has changed")
			}
			Fill(spec, tc.limits)
			for _, c := range []corev1.Container{spec.InitContainers[0], spec.Containers[0], filled.InitContainers[0], filled.Containers[0]} {
				if tc.limits != nil && !equality.Semantic.DeepEqual(c.Resources, tc.want) {
					t.Errorf("%s has %v, want %v", c.Name, c.Resources, tc.want)
				}
			}
			again := spec.DeepCopy()
			if Fill(again, tc.limits); !equality.Semantic.DeepEqual(again, spec) {
				t.Error("the second time the result differs")
			}
		})
	}
}

func TestPodsBeyondTheBoundsAreRefused(t *testing.T) {
	t.Parallel()
	bounds := func(least, most, podLeast, podMost string) *api.LimitRange {
		return &api.LimitRange{
			Container: &api.ContainerLimitRange{Min: limited(least), Max: limited(most)},
			Pod:       &api.PodLimitRange{Min: limited(podLeast), Max: limited(podMost)},
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	for name, tc := range map[string]struct {
		limits *api.LimitRange
		spec   corev1.PodSpec
		want   string
	}{
		"within":          {bounds("cpu=100m", "cpu=1", "cpu=100m", "cpu=2"), corev1.PodSpec{Containers: []corev1.Container{container("a", "cpu=100m", "cpu=1"), container("b", "cpu=1", "cpu=1")}}, ""},
		"without any":     {nil, corev1.PodSpec{Containers: []corev1.Container{container("a", "cpu=100", "")}}, ""},
		"too little":      {bounds("cpu=100m", "", "", ""), corev1.PodSpec{Containers: []corev1.Container{container("a", "cpu=1", ""), container("b", "cpu=99m", "")}}, "container b requests 99m cpu, and the contract's limit range requires at least 100m a container"},
		"nothing":         {bounds("memory=1Mi", "", "", ""), corev1.PodSpec{Containers: []corev1.Container{container("a", "cpu=1", "")}}, "container a requests 0 memory"},
		"too much":        {bounds("", "memory=1Gi", "", ""), corev1.PodSpec{Containers: []corev1.Container{container("a", "", "memory=2Gi")}}, "container a may use up to 2Gi memory, and the contract's limit range allows at most 1Gi a container"},
		"without a limit": {bounds("", "memory=1Gi", "", ""), corev1.PodSpec{Containers: []corev1.Container{container("a", "memory=1Mi", "")}}, "container a has no limit of memory"},
		"an init container too": {bounds("", "cpu=1", "", ""), corev1.PodSpec{
			InitContainers: []corev1.Container{container("first", "", "cpu=2")}, Containers: []corev1.Container{container("a", "", "cpu=1")},
		}, "container first may use up to 2 cpu"},
		"the whole pod's limit is each container's": {bounds("cpu=1", "cpu=1", "", "cpu=2"), corev1.PodSpec{
			Resources: &corev1.ResourceRequirements{Requests: amounts("cpu=1"), Limits: amounts("cpu=1")}, Containers: []corev1.Container{container("a", "", ""), container("b", "", "")},
		}, ""},
		"and may be too much": {bounds("", "cpu=1", "", ""), corev1.PodSpec{
			Resources: &corev1.ResourceRequirements{Limits: amounts("cpu=2")}, Containers: []corev1.Container{container("a", "", "")},
		}, "container a may use up to 2 cpu"},
		"a pod of too little": {bounds("", "", "cpu=1", ""), corev1.PodSpec{Containers: []corev1.Container{container("a", "cpu=400m", ""), container("b", "cpu=400m", "")}}, "the pod requests 800m cpu, and the contract's limit range requires at least 1 a pod"},
		"a pod of too much":   {bounds("", "", "", "cpu=1"), corev1.PodSpec{Containers: []corev1.Container{container("a", "", "cpu=600m"), container("b", "", "cpu=600m")}}, "the pod may use up to 1200m cpu, and the contract's limit range allows at most 1 a pod"},
		"containers of a pod that run one after the other": {bounds("", "", "", "cpu=1"), corev1.PodSpec{
			InitContainers: []corev1.Container{container("first", "", "cpu=1")}, Containers: []corev1.Container{container("a", "", "cpu=1")},
		}, ""},
		"a sidecar runs beside": {bounds("", "", "", "cpu=1"), corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "side", RestartPolicy: &always, Resources: asks("", "cpu=1")}}, Containers: []corev1.Container{container("a", "", "cpu=1")},
		}, "the pod may use up to 2 cpu"},
		"a pod that may use all": {bounds("", "", "", "cpu=1"), corev1.PodSpec{Containers: []corev1.Container{container("a", "", "cpu=1"), container("b", "", "")}}, "the pod has a container without a limit of cpu"},
		"one class's overhead is not the pod's": {bounds("", "", "", "cpu=1"), corev1.PodSpec{
			Overhead: amounts("cpu=1"), Containers: []corev1.Container{container("a", "", "cpu=1")},
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Fill(&tc.spec, tc.limits)
			switch err := Check(&tc.spec, tc.limits); {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
