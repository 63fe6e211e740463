package podspec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/entente-dev/entente/internal/fixture"
)

var container = fixture.Container

func TestDemandIsWhatTheSchedulerCounts(t *testing.T) {
	sidecar := container("cpu=50m", "")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	tests := map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"a pod without requests counts as one pod": {corev1.PodSpec{Containers: []corev1.Container{container("", "")}}, "pods=1"},
		"containers add up":                        {corev1.PodSpec{Containers: []corev1.Container{container("cpu=1,memory=1Gi", ""), container("cpu=500m", "")}}, "cpu=1500m memory=1Gi pods=1"},
		"a larger init container counts":           {corev1.PodSpec{InitContainers: []corev1.Container{container("cpu=2", "")}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=2 pods=1"},
		"a sidecar adds to the containers":         {corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=1050m pods=1"},
		"a limit alone is a request":               {corev1.PodSpec{Containers: []corev1.Container{container("", "cpu=3,nvidia.com/gpu=1")}}, "cpu=3 nvidia.com/gpu=1 pods=1"},
		"a limit beside a request is not":          {corev1.PodSpec{Containers: []corev1.Container{container("cpu=1", "cpu=3")}}, "cpu=1 pods=1"},
		"overhead counts":                          {corev1.PodSpec{Overhead: corev1.ResourceList{"cpu": resource.MustParse("250m")}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=1250m pods=1"},
		"the pod's own resources rule":             {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("4")}}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=4 pods=1"},
		"a negative amount is refused":             {corev1.PodSpec{Containers: []corev1.Container{container("cpu=-1", "")}}, "error"},
		"a negative limit is refused":              {corev1.PodSpec{Containers: []corev1.Container{container("", "memory=-1Gi")}}, "error"},
		"more than there can be is refused":        {corev1.PodSpec{Containers: []corev1.Container{container("memory=8Ei", "")}}, "error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Demand(&tc.spec)
			var parts []string
			for k, q := range got {
				parts = append(parts, fmt.Sprintf("%s=%s", k, q.String()))
			}
			slices.Sort(parts)
			s := strings.Join(parts, " ")
			if err != nil {
				s = "error"
			}
			if s != tc.want {
				t.Fatalf("demand = %s (%v), want %s", s, err, tc.want)
			}
		})
	}
}
