package peering

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Kind is a kind of object that a consumer sends to its provider.
type Kind uint8

// The kinds, in the order in which a provider has to see them: a pod's
// namespace and what it refers to before the pod.
const (
	KindNamespace Kind = iota + 1
	KindConfigMap
	KindSecret
	KindService
	// KindNetworkPolicy is the part of a NetworkPolicy that applies to pods at the provider.
	KindNetworkPolicy
	// KindClaim is a volume that pods mount.
	KindClaim
	KindPod
)

func (k Kind) String() string {
	return nameOf(k, []string{
		KindNamespace: "Namespace", KindConfigMap: "ConfigMap", KindSecret: "Secret", KindService: "Service", KindNetworkPolicy: "NetworkPolicy", KindPod: "Pod", KindClaim: "PersistentVolumeClaim",
	})
}

// ObjectRef identifies an object of the consumer, by its names there. Another UID is another
// object, whatever its name. It is comparable.
type ObjectRef struct {
	Kind Kind
	// Namespace is empty for a namespace.
	Namespace string
	Name      string
	UID       string
}

// String returns kind, namespace/name and UID, for messages.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return fmt.Sprintf("%s %s (%s)", r.Kind, r.Name, r.UID)
	}
	return fmt.Sprintf("%s %s/%s (%s)", r.Kind, r.Namespace, r.Name, r.UID)
}

// Hash is the SHA-256 of an object as it is sent, by which the two sides compare it.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads what String wrote.
func ParseHash(s string) (Hash, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(Hash{}) {
		return Hash{}, fmt.Errorf("hash %q is not %d hexadecimal digits", s, 2*len(Hash{}))
	}
	return Hash(b), nil
}

// Object is an object as it is sent: JSON, already translated by the consumer, without what must
// not leave it, and not yet by the provider.
type Object struct {
	Ref  ObjectRef
	JSON []byte
}

// Hash returns the hash over the object's kind, names and JSON.
func (o Object) Hash() Hash {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00", o.Ref.Kind, o.Ref.Namespace, o.Ref.Name, o.Ref.UID)
	h.Write(o.JSON)
	return Hash(h.Sum(nil))
}

// Held is an object that the provider holds, in the form with this hash.
type Held struct {
	Ref  ObjectRef
	Hash Hash
}

// RefusalReason is why a provider refuses an object. Reasons are part of the
// protocol: they never change their meaning.
type RefusalReason string

// The reasons.
const (
	RefusedQuota       RefusalReason = "QUOTA_EXCEEDED"
	RefusedContract    RefusalReason = "CONTRACT_CLOSED"
	RefusedPodSecurity RefusalReason = "POD_SECURITY"
	RefusedNamespace   RefusalReason = "NAMESPACE_REFUSED"
	RefusedInvalid     RefusalReason = "OBJECT_INVALID"
	RefusedInternal    RefusalReason = "INTERNAL"
)

// Condition returns the reason in the form of conditions of Kubernetes: QuotaExceeded. INTERNAL
// would read as a fault of home, so it is ProviderError; a reason that home does not know is
// Refused.
func (r RefusalReason) Condition() string {
	switch r {
	case RefusedQuota, RefusedContract, RefusedPodSecurity, RefusedNamespace, RefusedInvalid:
		return Reason(r).Condition()
	case RefusedInternal:
		return "ProviderError"
	}
	return "Refused"
}

// Refusal is a provider's refusal of an object. It is an error whose message says what was
// refused, why, and what to do.
type Refusal struct {
	Reason  RefusalReason
	Message string
	// Retryable means that trying again, unchanged, may help.
	Retryable bool
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Message }

// Ack acknowledges an object that was applied, or a delete (then Hash is zero).
type Ack struct {
	Ref  ObjectRef
	Hash Hash
	// Refusal is nil when it was carried out.
	Refusal *Refusal
	// Remembered means that the provider remembers the object as it was applied, so that changes of it can be sent
	// as long as the stream lasts.
	Remembered bool
}

// PodStatus is a pod's status at its provider.
type PodStatus struct {
	Ref ObjectRef
	// RemoteName is the pod's namespace/name in the provider.
	RemoteName string
	// RemoteUID is the pod's UID in the provider.
	RemoteUID string
	// Status is a Kubernetes PodStatus as JSON, with addresses of the provider.
	Status []byte
	// Gone means that the pod is gone and none of its containers runs.
	Gone bool
	// DeletionTimestamp is that of the pod in the provider's cluster, RFC 3339: when its grace
	// period ends there, by the provider's clock. It is empty if it is not being deleted.
	DeletionTimestamp string
}

// PodEvent is a Kubernetes Event of a pod in the provider.
type PodEvent struct {
	Ref     ObjectRef
	Type    string
	Reason  string
	Message string
	Count   int32
}

// ClaimObject is the JSON of an Object of KindClaim. The object's name is that of the
// volume, its UID that of the claim at home for which the volume is made.
type ClaimObject struct {
	// Claim is the name of the claim at home, for people to read.
	Claim string `json:"claim"`
	// StorageClass is a class of the provider's that the contract grants.
	StorageClass string `json:"storageClass"`
	// Bytes is its least size. It may grow.
	Bytes int64 `json:"bytes"`
	// AccessModes are as in a PersistentVolumeClaim.
	AccessModes []string `json:"accessModes"`
	// Exists means that the provider made the volume before. One that does not have it refuses it,
	// and must not make an empty one in its place.
	Exists bool `json:"exists,omitempty"`
}

// NamespaceObject is the JSON of an Object of KindNamespace.
type NamespaceObject struct {
	// Mapping is Suffixed, Same or Chosen.
	Mapping string `json:"mapping"`
	// Name is its name at the provider, with the mapping Chosen only.
	Name string `json:"name,omitempty"`
	// ClusterDomain is the domain of the names of Services at home; empty means
	// DefaultClusterDomain.
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// FenceSeconds is after how long of silence its pods have to have been stopped; 0 means never.
	FenceSeconds int64 `json:"fenceSeconds,omitempty"`
}

// DefaultClusterDomain is the default domain of the names of Services in a cluster.
const DefaultClusterDomain = "cluster.local"

// ServiceObject is the JSON of an Object of KindService: what another cluster needs of a Service
// to serve its name.
type ServiceObject struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Headless means that the name resolves to the endpoints themselves.
	Headless bool          `json:"headless,omitempty"`
	Ports    []ServicePort `json:"ports"`
	// SessionAffinity is None or ClientIP.
	SessionAffinity string `json:"sessionAffinity,omitempty"`
	// SessionAffinitySeconds is the timeout of ClientIP; 0 means the default of Kubernetes.
	SessionAffinitySeconds int32             `json:"sessionAffinitySeconds,omitempty"`
	Endpoints              []ServiceEndpoint `json:"endpoints,omitempty"`
	// OwnFirst means that only endpoints in the provider's cluster are used as long as one of them
	// is ready. A headless Service always has all.
	OwnFirst bool `json:"ownFirst,omitempty"`
	// TrafficDistribution is the Service's: which of the endpoints in the provider's cluster are preferred there.
	// Values that the provider does not know are ignored.
	TrafficDistribution string `json:"trafficDistribution,omitempty"`
	// ExternalName is the Service's external name, resolved as in the consumer's cluster; see
	// CheckExternalName. Such a Service is sent as headless, without ports and endpoints, so that
	// a provider that does not know the field responds that there is no such name.
	ExternalName string `json:"externalName,omitempty"`
	// SetName is the name of the ServiceImport of the Multi-Cluster Services API from which this
	// is made, which is resolved below clusterset.local. The object's own name is not that of a
	// Service.
	SetName string `json:"setName,omitempty"`
}

// CheckSet returns why a Service cannot be one of a cluster set: because of its name, its
// external name, or the clusters of its endpoints.
func (s ServiceObject) CheckSet() error {
	switch {
	case s.SetName == "":
	case len(s.SetName) > maxDNSLabel || !isLabel(lower+digits, s.SetName):
		return fmt.Errorf("invalid Service name %.64q", s.SetName)
	case s.ExternalName != "":
		return fmt.Errorf("a Service of a cluster set must not set externalName")
	}
	for _, e := range s.Endpoints {
		if e.Cluster == "" {
			continue
		}
		if _, err := ParseClusterID(e.Cluster); err != nil {
			return fmt.Errorf("endpoint %.64s: its cluster: %w", e.Address, err)
		}
	}
	return nil
}

// ServicePort is a port of a Service. Endpoints listen on Port only if that is their port in
// ServiceEndpoint.Ports.
type ServicePort struct {
	Name        string `json:"name,omitempty"`
	Protocol    string `json:"protocol"`
	AppProtocol string `json:"appProtocol,omitempty"`
	Port        int32  `json:"port"`
}

// ServiceEndpoint is an address that serves a Service.
type ServiceEndpoint struct {
	// Address is an IP as the consumer uses it: that of one of its own pods, or the consumer's
	// alias of a pod in a foreign cluster.
	Address string `json:"address"`
	Ready   bool   `json:"ready"`
	// Serving and Terminating are as in a Kubernetes EndpointSlice.
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating,omitempty"`
	Hostname    string `json:"hostname,omitempty"`
	// Ports maps the Service's port names to the ports on this endpoint.
	Ports map[string]int32 `json:"ports"`
	// PodUID is the UID of the consumer's pod behind it, if any.
	PodUID string `json:"podUID,omitempty"`
	// Cluster is the ID of the cluster that exports it, in a Service of a cluster set. An endpoint
	// of the provider's own is a pod there, with the consumer's alias as its address.
	Cluster string `json:"cluster,omitempty"`
}
