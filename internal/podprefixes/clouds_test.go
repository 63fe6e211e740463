package podprefixes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCloudsAreRecognisedByTheirNodes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		labels map[string]string
		eni    bool
		want   string
	}{
		"no cloud":                  {map[string]string{"kubernetes.io/os": "linux"}, false, ""},
		"GKE":                       {map[string]string{"cloud.google.com/gke-nodepool": "default"}, false, adviceGKE},
		"AKS":                       {map[string]string{"kubernetes.azure.com/cluster": "MC_a"}, false, adviceAKS},
		"EKS without ENIConfigs":    {map[string]string{"eks.amazonaws.com/nodegroup": "a"}, false, adviceAWS},
		"the AWS VPC CNI elsewhere": {nil, true, adviceAWS},
	} {
		nodes := []corev1.Node{{}, {ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}}
		if got := advice(nodes, tc.eni); got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
		if len(tc.want) > maxAdvice {
			t.Errorf("%s: %d characters, a FabricNode has room for %d", name, len(tc.want), maxAdvice)
		}
	}
}

// maxAdvice is the limit of clusterPodCIDRAdvice of FabricNodes.
const maxAdvice = 512
