package podprefixes

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// What to set in managed Kubernetes whose pods have addresses that no object of the API server lists.
const (
	adviceAWS = "set cluster.podCIDRs in the chart's values to the CIDRs of all subnets from which pods get addresses, which no object here lists: " +
		"with the AWS VPC CNI those of the nodes' subnets, or of the subnets that ENIConfigs name (aws ec2 describe-subnets)"
	adviceGKE = "set cluster.podCIDRs in the chart's values to all ranges for pods of the cluster and of its node pools: " +
		"clusterIpv4Cidr, and podIpv4CidrBlock of node pools (gcloud container clusters describe)"
	adviceAKS = "set cluster.podCIDRs in the chart's values to networkProfile.podCidrs of the cluster if it is an overlay or has kubenet (az aks show), " +
		"and otherwise to the CIDRs of the subnets of nodes or pods, which no object here lists (az network vnet subnet list)"
)

// advice returns what to set if pods are outside of all prefixes that the cluster shows; empty if nothing particular is
// known. It recognises managed Kubernetes by labels of its nodes; eni says that the API server has ENIConfigs, which
// come with the AWS VPC CNI.
func advice(nodes []corev1.Node, eni bool) string {
	for i := range nodes {
		for label := range nodes[i].Labels {
			switch {
			case label == "cloud.google.com/gke-nodepool":
				return adviceGKE
			case label == "kubernetes.azure.com/cluster":
				return adviceAKS
			case strings.HasPrefix(label, "eks.amazonaws.com/"):
				eni = true
			}
		}
	}
	if eni {
		return adviceAWS
	}
	return ""
}
