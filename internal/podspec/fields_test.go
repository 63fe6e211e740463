package podspec

// fate is what happens to a field of a PodSpec that crosses.
type fate string

const (
	kept      fate = "kept"
	dropped   fate = "dropped"
	rewritten fate = "rewritten"
	refused   fate = "refused"
)

// fieldDecision is a row of the table in docs/offloading.md.
type fieldDecision struct {
	path string
	fate fate
	why  string
}

// fieldDecisions says what happens to each field of a PodSpec. The longest path that matches
// decides; a field below a kept one that has no row is kept. The tests compare the
// translation, docs/offloading.md and the fields that Kubernetes has with this table.
func fieldDecisions() []fieldDecision {
	return []fieldDecision{
		{"spec.activeDeadlineSeconds", kept, "the provider's kubelet enforces it"},
		{"spec.affinity", rewritten, "which pods it seeks and shuns by kubernetes.io/hostname, topology.kubernetes.io/zone and topology.kubernetes.io/region holds among the consumer's pods at the provider, too; matchLabelKeys and mismatchLabelKeys become a part of the labelSelector; terms of other topologies go: the home scheduler has satisfied them with the virtual node"},
		{"spec.affinity.nodeAffinity", dropped, "it speaks of the home cluster's nodes, and the home scheduler has satisfied it"},
		{"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector", refused, "if it selects by another label than kubernetes.io/metadata.name: labels of namespaces do not cross; a preferred term goes, with a note"},
		{"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector", refused, "if it selects by another label than kubernetes.io/metadata.name: labels of namespaces do not cross; a preferred term goes, with a note"},
		{"spec.automountServiceAccountToken", rewritten, "always false: the provider mounts no token of its own either"},
		{"spec.containers", kept, "resources change while the pod runs, see Resizing"},
		{"spec.containers[].env[].valueFrom.fieldRef", rewritten, "metadata.name, metadata.namespace, metadata.uid, spec.nodeName and spec.serviceAccountName become their values at home, and status.hostIP and status.hostIPs the virtual node's address; other fields resolve in the provider: metadata.labels['…'] and metadata.annotations['…'] are home's, as they are when the container starts, and status.podIP and status.podIPs are those of the pod's own interfaces, or with the annotation entente.dev/pod-ip: Home those by which home knows it"},
		{"spec.containers[].ports[].hostIP", refused, "a port of the provider's node"},
		{"spec.containers[].ports[].hostPort", refused, "a port of the provider's node"},
		{"spec.containers[].securityContext.windowsOptions.hostProcess", refused, "it is the provider's node"},
		{"spec.containers[].volumeDevices", refused, "block devices of PersistentVolumeClaims do not cross"},
		{"spec.containers[].volumeMounts", rewritten, "mounts of the ServiceAccount token volume go with it, unless the pod asks for the API of its home"},
		{"spec.dnsConfig", kept, "what it names is added to the resolver and the search domains that the provider sets"},
		{"spec.dnsPolicy", kept, "with ClusterFirst a resolver at the provider answers with the names of home, see Names; Default is the provider's node's"},
		{"spec.enableServiceLinks", kept, "variables are of the Services in the provider's namespace, which are the reflected ones"},
		{"spec.ephemeralContainers", kept, "added to the pod that runs, as at home; what breaks the contract's Pod Security level is refused, and the container's status says so: kubectl debug needs `--profile=baseline` or `restricted` where the level is that"},
		{"spec.evictionResponders", dropped, "they answer evictions at home"},
		{"spec.hostAliases", kept, ""},
		{"spec.hostIPC", refused, "a namespace of the provider's node"},
		{"spec.hostNetwork", refused, "a namespace of the provider's node"},
		{"spec.hostPID", refused, "a namespace of the provider's node"},
		{"spec.hostUsers", kept, "false asks for a user namespace; true is the default"},
		{"spec.hostname", kept, ""},
		{"spec.hostnameOverride", kept, ""},
		{"spec.imagePullSecrets", kept, "the Secrets cross with the pod"},
		{"spec.initContainers", kept, "in them the same fields are changed as in containers"},
		{"spec.nodeName", dropped, "it names the virtual node"},
		{"spec.nodeSelector", dropped, "it speaks of the home cluster's nodes, and the home scheduler has satisfied it"},
		{"spec.os", kept, ""},
		{"spec.overhead", dropped, "it belongs to the RuntimeClass, the provider's has its own"},
		{"spec.preemptionPolicy", dropped, "priorities are those of the home cluster"},
		{"spec.priority", dropped, "priorities are those of the home cluster"},
		{"spec.priorityClassName", rewritten, "into the class of the provider's that its policy maps it to; without one the pod is as one that names no class, with an event `NotCarried`"},
		{"spec.readinessGates", dropped, "home controllers set those conditions; the local Ready waits for them"},
		{"spec.resourceClaims", refused, "devices are claimed at home and cannot be used elsewhere"},
		{"spec.containers[].resources.claims", refused, "devices are claimed at home and cannot be used elsewhere"},
		{"spec.resources", kept, ""},
		{"spec.resources.claims", refused, "devices are claimed at home and cannot be used elsewhere"},
		{"spec.restartPolicy", kept, ""},
		{"spec.runtimeClassName", rewritten, "a class that the contract names stays, another one becomes what the provider's policy maps it to; without one the pod is refused: a pod that asks for a sandbox must not run without"},
		{"spec.schedulerName", dropped, "it names a scheduler of the home cluster"},
		{"spec.schedulingGates", dropped, "the pod is scheduled"},
		{"spec.schedulingGroup", dropped, "the pod is scheduled"},
		{"spec.securityContext", kept, "the provider checks it against the contract's Pod Security level"},
		{"spec.securityContext.windowsOptions.hostProcess", refused, "it is the provider's node"},
		{"spec.serviceAccount", dropped, "no identity of the home cluster is known in the provider"},
		{"spec.serviceAccountName", dropped, "no identity of the home cluster is known in the provider"},
		{"spec.setHostnameAsFQDN", kept, ""},
		{"spec.shareProcessNamespace", kept, ""},
		{"spec.subdomain", kept, ""},
		{"spec.terminationGracePeriodSeconds", kept, ""},
		{"spec.tolerations", rewritten, "those for virtual nodes, and one that tolerates everything, go, so that a pod is not passed on to another provider; the provider keeps those of nodes that are away, and adds those of its pool"},
		{"spec.topologySpreadConstraints", rewritten, "DoNotSchedule becomes ScheduleAnyway without minDomains, and matchLabelKeys becomes a part of the labelSelector: replicas still spread over the provider's hosts, zones and regions; constraints of other topologies go, since only home has those"},
		{"spec.volumes", rewritten, "the ServiceAccount token volume goes, unless the pod asks for the API of its home: then it has no token"},
		{"spec.volumes[].name", kept, ""},
		{"spec.volumes[].configMap", kept, "the ConfigMap crosses with the pod"},
		{"spec.volumes[].downwardAPI", kept, "resolved in the provider: names, namespaces and UIDs are the provider's; single labels and annotations are home's"},
		{"spec.volumes[].emptyDir", kept, ""},
		{"spec.volumes[].image", kept, ""},
		{"spec.volumes[].projected", kept, ""},
		{"spec.volumes[].projected.sources[].serviceAccountToken", dropped, "no credential of the home cluster crosses; what else is in the volume does. In the volume that home adds for it, of a pod with the annotation entente.dev/home-api, the provider writes what leads to the API of home"},
		{"spec.volumes[].projected.sources[].clusterTrustBundle", refused, "trust bundles are objects of the home cluster"},
		{"spec.volumes[].projected.sources[].podCertificate", refused, "a credential of the home cluster"},
		{"spec.volumes[].secret", kept, "the Secret crosses with the pod, unless it is a ServiceAccount token"},
		{"spec.volumes[].awsElasticBlockStore", refused, "storage of the home cluster"},
		{"spec.volumes[].azureDisk", refused, "storage of the home cluster"},
		{"spec.volumes[].azureFile", refused, "storage of the home cluster"},
		{"spec.volumes[].cephfs", refused, "storage of the home cluster"},
		{"spec.volumes[].cinder", refused, "storage of the home cluster"},
		{"spec.volumes[].csi", refused, "drivers and what they refer to are the home cluster's"},
		{"spec.volumes[].ephemeral", rewritten, "into the volume at the provider that its claim is bound to, as persistentVolumeClaim"},
		{"spec.volumes[].fc", refused, "storage of the home cluster"},
		{"spec.volumes[].flexVolume", refused, "storage of the home cluster"},
		{"spec.volumes[].flocker", refused, "storage of the home cluster"},
		{"spec.volumes[].gcePersistentDisk", refused, "storage of the home cluster"},
		{"spec.volumes[].gitRepo", refused, "removed from Kubernetes; use an init container"},
		{"spec.volumes[].glusterfs", refused, "storage of the home cluster"},
		{"spec.volumes[].hostPath", refused, "files of the provider's node"},
		{"spec.volumes[].iscsi", refused, "storage of the home cluster"},
		{"spec.volumes[].nfs", refused, "the same address may be another server in the provider"},
		{"spec.volumes[].persistentVolumeClaim", rewritten, "claimName becomes the name of the volume at the provider; a claim whose volume is elsewhere keeps the pod from crossing"},
		{"spec.volumes[].photonPersistentDisk", refused, "storage of the home cluster"},
		{"spec.volumes[].portworxVolume", refused, "storage of the home cluster"},
		{"spec.volumes[].quobyte", refused, "storage of the home cluster"},
		{"spec.volumes[].rbd", refused, "storage of the home cluster"},
		{"spec.volumes[].scaleIO", refused, "storage of the home cluster"},
		{"spec.volumes[].storageos", refused, "storage of the home cluster"},
		{"spec.volumes[].vsphereVolume", refused, "storage of the home cluster"},
	}
}
