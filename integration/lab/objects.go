package lab

import (
	"fmt"
)

// object is one Kubernetes object to apply.
type object struct {
	path string
	body map[string]any
}

// m is any part of an object.
type m = map[string]any

// nodeObject is a node before its kubelet comes: so that the controller manager
// finds the pod prefix that the plan gives it, if nodes are to have one.
func nodeObject(n NodePlan, podCIDR bool) m {
	spec := m{}
	if podCIDR {
		spec = m{"podCIDR": n.PodCIDR.String(), "podCIDRs": n.PodCIDRs()}
	}
	// The annotation is a controller's, which sets it to this. Flannel takes it that a node
	// has some annotation, as those have that a kubelet made.
	annotations := m{"node.alpha.kubernetes.io/ttl": "0"}
	return m{"apiVersion": "v1", "kind": "Node", "metadata": m{"name": n.Name, "annotations": annotations}, "spec": spec}
}

func fakeNodeName(c ClusterPlan, i int) string { return fmt.Sprintf("%s-fake-%d", c.Name, i) }

// fakeNode is a node that kwok looks after. Its taint keeps away what did not
// ask for it, where there are real nodes too.
func fakeNode(c ClusterPlan, i int) m {
	spec := m{}
	if len(c.Nodes) > 0 {
		spec["taints"] = []m{{"key": fakeNodeLabel, "value": "true", "effect": "NoSchedule"}}
	}
	return m{
		"apiVersion": "v1", "kind": "Node",
		"metadata": m{
			"name": fakeNodeName(c, i),
			"labels": m{
				fakeNodeLabel: "true", "kubernetes.io/hostname": fakeNodeName(c, i),
				"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			},
			"annotations": m{"node.alpha.kubernetes.io/ttl": "0"},
		},
		"spec": spec,
	}
}

// kubeNodeLease is the namespace of node leases, which appears a moment after
// the API server is ready.
var kubeNodeLease = object{ //nolint:gochecknoglobals // a constant
	path: "/api/v1/namespaces/kube-node-lease",
	body: m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": "kube-node-lease"}},
}

// kubeadmConfig is the ConfigMap in which kubeadm keeps the prefixes of pods.
func kubeadmConfig(c ClusterPlan) object {
	config := fmt.Sprintf("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking:\n  podSubnet: %s\n", list(c.PodCIDRs()))
	return object{"/api/v1/namespaces/kube-system/configmaps/kubeadm-config", m{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "kubeadm-config", "namespace": "kube-system"},
		"data": m{"ClusterConfiguration": config},
	}}
}

const corefile = `.:53 {
    errors
    health {
        lameduck 2s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }
    prometheus :9153
    cache 5
    reload
    loadbalance
}
`

// coreDNS lists the objects of the cluster's DNS.
func coreDNS(c ClusterPlan) []object {
	const ns, name = "kube-system", "coredns"
	labels := m{"k8s-app": "kube-dns"}
	meta := func(n string) m { return m{"name": n, "namespace": ns, "labels": labels} }
	namespaced := "/api/v1/namespaces/" + ns
	return []object{
		{namespaced + "/serviceaccounts/" + name, m{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name)}},
		{"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:coredns", m{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": m{"name": "system:coredns"},
			"rules": []m{
				{"apiGroups": []string{""}, "resources": []string{"endpoints", "services", "pods", "namespaces"}, "verbs": []string{"list", "watch"}},
				{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": []string{"list", "watch"}},
			},
		}},
		{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:coredns", m{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": m{"name": "system:coredns"},
			"roleRef":  m{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
			"subjects": []m{{"kind": "ServiceAccount", "name": name, "namespace": ns}},
		}},
		{namespaced + "/configmaps/" + name, m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(name), "data": m{"Corefile": corefile}}},
		{namespaced + "/services/kube-dns", m{
			"apiVersion": "v1", "kind": "Service", "metadata": meta("kube-dns"),
			"spec": dnsService(c, labels),
		}},
		{"/apis/apps/v1/namespaces/" + ns + "/deployments/" + name, m{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(name),
			"spec": m{"replicas": 1, "selector": m{"matchLabels": labels}, "template": m{"metadata": m{"labels": labels}, "spec": coreDNSPod(name)}},
		}},
	}
}

func dnsService(c ClusterPlan, labels m) m {
	policy := "SingleStack"
	if c.DNSService6.IsValid() {
		policy = "RequireDualStack"
	}
	return m{
		"selector": labels, "clusterIP": c.DNSService.String(), "clusterIPs": given(c.DNSService, c.DNSService6), "ipFamilyPolicy": policy,
		"ports": []m{
			{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
			{"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
		},
	}
}

func coreDNSPod(name string) m {
	probe := func(path string, port int) m {
		return m{"httpGet": m{"path": path, "port": port}, "periodSeconds": 2, "failureThreshold": 15}
	}
	return m{
		"serviceAccountName": name,
		"priorityClassName":  "system-cluster-critical",
		// The first node lives as long as the cluster.
		"nodeSelector":                  m{"kubernetes.io/os": "linux"},
		"dnsPolicy":                     "Default",
		"terminationGracePeriodSeconds": 5,
		"containers": []m{{
			"name": name, "image": CoreDNSImage, "imagePullPolicy": "IfNotPresent",
			"args":           []string{"-conf", "/etc/coredns/Corefile"},
			"ports":          []m{{"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"}},
			"resources":      m{"requests": m{"cpu": "10m", "memory": "30Mi"}, "limits": m{"memory": "170Mi"}},
			"readinessProbe": probe("/ready", 8181),
			"livenessProbe":  probe("/health", 8080),
			"securityContext": m{
				"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
				"capabilities": m{"add": []string{"NET_BIND_SERVICE"}, "drop": []string{"ALL"}},
			},
			"volumeMounts": []m{{"name": "config", "mountPath": "/etc/coredns", "readOnly": true}},
		}},
		"volumes": []m{{"name": "config", "configMap": m{"name": name}}},
	}
}
