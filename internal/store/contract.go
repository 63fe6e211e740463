package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// NewContract returns the custom resource for a contract that both sides signed.
func NewContract(envelope peering.Envelope, self peering.ClusterID, foreignCluster string) (*v1alpha1.Contract, error) {
	terms, err := envelope.Verify()
	if err != nil {
		return nil, err
	}
	role, ok := terms.RoleOf(self)
	if !ok {
		return nil, fmt.Errorf("contract %s is between %s and %s, not with this cluster %s", terms.ContractID, terms.Consumer.ID, terms.Provider.ID, self)
	}
	text, err := envelope.Marshal()
	if err != nil {
		return nil, err
	}
	spec, err := contractSpec(terms)
	if err != nil {
		return nil, err
	}
	peer := string(terms.Party(role.Other()).ID)
	spec.ForeignCluster, spec.PeerID, spec.Envelope = foreignCluster, peer, string(text)
	if spec.Role = v1alpha1.ContractConsumer; role == peering.Provider {
		spec.Role = v1alpha1.ContractProvider
	}
	return &v1alpha1.Contract{
		ObjectMeta: metav1.ObjectMeta{
			Name:       terms.ContractID,
			Labels:     map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: peer},
			Finalizers: []string{v1alpha1.Finalizer},
		},
		Spec: spec,
	}, nil
}

// contractSpec is the readable copy of what was signed.
func contractSpec(terms peering.Terms) (v1alpha1.ContractSpec, error) {
	resources, err := ResourceList(terms.Resources)
	limits, limitsErr := LimitRangeOf(terms.LimitRange)
	if err := errors.Join(err, limitsErr); err != nil {
		return v1alpha1.ContractSpec{}, err
	}
	spec := v1alpha1.ContractSpec{
		Revision:       int64(terms.Revision),
		RequestID:      terms.RequestID,
		Resources:      resources,
		NotBefore:      metav1.NewTime(terms.NotBefore),
		NotAfter:       metav1.NewTime(terms.NotAfter),
		Network:        v1alpha1.NetworkNone,
		PodSecurity:    v1alpha1.PodSecurityLevel(terms.PodSecurity),
		NodeLabels:     terms.NodeLabels,
		Price:          PricesOf(terms.Price),
		Renewable:      terms.Renewable,
		Notice:         &metav1.Duration{Duration: terms.Notice},
		Exposure:       terms.Exposure,
		Pool:           terms.Pool,
		NodeSelector:   terms.NodeSelector,
		RuntimeClasses: terms.RuntimeClasses,
		LimitRange:     limits,
	}
	if terms.StatementPeriod > 0 {
		spec.StatementPeriod = &metav1.Duration{Duration: terms.StatementPeriod}
	}
	if terms.Network {
		spec.Network = v1alpha1.NetworkTunnel
	}
	return spec, nil
}

// ReadContract returns a contract's state as a value, and its terms. Both come from the envelope: a client that can
// write custom resources can end a contract, but not change what was signed.
func ReadContract(c *v1alpha1.Contract, self peering.ClusterID) (peering.Contract, peering.Terms, error) {
	s, err := verify(c)
	if err != nil {
		return peering.Contract{}, peering.Terms{}, err
	}
	return s.read(c, self)
}

// signed is what both sides of a contract signed.
type signed struct {
	text  string
	terms peering.Terms
	hash  peering.Hash
}

// verify reads the envelope of a contract, and checks its signatures.
func verify(c *v1alpha1.Contract) (signed, error) {
	envelope, err := peering.ParseEnvelope([]byte(c.Spec.Envelope))
	if err != nil {
		return signed{}, fmt.Errorf("envelope of contract %s: %w", c.Name, err)
	}
	terms, err := envelope.Verify()
	if err != nil {
		return signed{}, fmt.Errorf("envelope of contract %s: %w", c.Name, err)
	}
	return signed{text: c.Spec.Envelope, terms: terms, hash: envelope.Hash()}, nil
}

// read returns the state of the contract that has this envelope.
func (s signed) read(c *v1alpha1.Contract, self peering.ClusterID) (peering.Contract, peering.Terms, error) {
	role, ok := s.terms.RoleOf(self)
	if !ok || s.terms.ContractID != c.Name || string(s.terms.Party(role.Other()).ID) != c.Spec.PeerID {
		return peering.Contract{}, peering.Terms{}, fmt.Errorf("envelope of contract %s is of contract %s between %s and %s", c.Name, s.terms.ContractID, s.terms.Consumer.ID, s.terms.Provider.ID)
	}
	return peering.Restore(s.terms, s.hash, role, peering.Stored{
		Phase: peering.ParsePhase(c.Status.Phase), Reason: peering.ParseEndReason(c.Status.Reason),
		DrainUntil: TimeOf(c.Status.DrainUntil), ClosedAt: TimeOf(c.Status.ClosedAt),
	}), s.terms, nil
}

// ContractReader is ReadContract with a cache: an envelope is verified once. What it returns is
// shared and must not be changed. It is safe for concurrent use.
type ContractReader struct{ verified *lru.Cache }

// NewContractReader returns a reader that caches the given number of envelopes.
func NewContractReader(size int) *ContractReader { return &ContractReader{lru.New(size)} }

// Read returns what ReadContract does.
func (r *ContractReader) Read(c *v1alpha1.Contract, self peering.ClusterID) (peering.Contract, peering.Terms, error) {
	if known, ok := r.verified.Get(c.Name); ok && known.(signed).text == c.Spec.Envelope {
		return known.(signed).read(c, self)
	}
	s, err := verify(c)
	if err != nil {
		return peering.Contract{}, peering.Terms{}, err
	}
	r.verified.Add(c.Name, s)
	return s.read(c, self)
}

// Unverified returns a contract as its custom resource has it, without verifying the envelope, for decisions about
// many contracts at once. A client that can write custom resources can forge it.
func Unverified(c *v1alpha1.Contract) peering.Contract {
	out := peering.Contract{
		ID: c.Name, Role: peering.Consumer, State: peering.ParsePhase(c.Status.Phase).State(), Network: c.Spec.Network == v1alpha1.NetworkTunnel,
	}
	if c.Spec.Role == v1alpha1.ContractProvider {
		out.Role = peering.Provider
	}
	return out
}

// WriteState stores a contract's state in the status of its custom resource, from which ReadContract restores it.
func WriteState(c *v1alpha1.Contract, value peering.Contract) {
	c.Status.Phase = value.Phase().String()
	c.Status.Reason, c.Status.Message = value.Reason.Name(), value.Reason.String()
	c.Status.DrainUntil, c.Status.ClosedAt = nil, nil
	if value.State == peering.Draining {
		c.Status.DrainUntil = timeTo(value.DrainUntil)
	}
	if value.State == peering.Closed {
		c.Status.ClosedAt = timeTo(value.ClosedAt)
	}
}

// annotationFulfils is the Fulfilment of a consumer's contract. It is written together with the envelope, so both
// are always of the same revision.
const annotationFulfils = "entente.dev/fulfils"

// annotationStorageClasses is the storage classes that a provider's contract was
// granted with, separated by commas.
const annotationStorageClasses = "entente.dev/storage-classes"

// annotationBefore is the envelope of the previous revision, for checking statements that were made just before a
// revision.
const annotationBefore = "entente.dev/previous-envelope"

// annotationEarlier, followed by its number, is the envelope of an earlier revision. Statements of use have the
// prices of the revision in force: its envelope proves that both sides agreed to them.
const annotationEarlier = "entente.dev/envelope-of-revision-"

// keepEarlier moves the content of annotationBefore, which is about to be replaced, to an annotation of its own.
func keepEarlier(c *v1alpha1.Contract) {
	text := c.Annotations[annotationBefore]
	envelope, err := peering.ParseEnvelope([]byte(text))
	if err != nil {
		return
	}
	terms, err := envelope.Verify()
	if err != nil {
		return
	}
	c.Annotations[annotationEarlier+strconv.FormatUint(terms.Revision, 10)] = text
	dropEarlier(c.Annotations)
}

// dropEarlier removes the oldest earlier revisions that exceed what a Contract keeps.
func dropEarlier(annotations map[string]string) {
	var kept []uint64
	for key := range annotations {
		if number, ok := strings.CutPrefix(key, annotationEarlier); ok {
			revision, _ := strconv.ParseUint(number, 10, 64) // a malformed number goes first
			kept = append(kept, revision)
		}
	}
	slices.SortFunc(kept, func(a, b uint64) int { return cmp.Compare(b, a) })
	left := maxEarlierBytes
	for i, revision := range kept {
		key := annotationEarlier + strconv.FormatUint(revision, 10)
		if size := len(annotations[key]); i < maxEarlier && size <= left {
			left -= size
			continue
		}
		delete(annotations, key)
	}
}

// Fulfilment is which state of its PeeringRequest a consumer's contract fulfils. The zero Fulfilment means that
// this is not known.
type Fulfilment struct {
	// Generation is the generation of the PeeringRequest.
	Generation int64 `json:"generation"`
	// Duration is the duration that it then asked for; zero if it named none.
	Duration time.Duration `json:"duration,omitempty"`
}

// Fulfils returns what a contract fulfils of its PeeringRequest.
func Fulfils(c *v1alpha1.Contract) Fulfilment {
	var f Fulfilment
	if err := json.Unmarshal([]byte(c.Annotations[annotationFulfils]), &f); err != nil {
		return Fulfilment{}
	}
	return f
}

// StorageClasses returns the storage classes that a provider's contract was granted with. They are not in the
// terms: only the provider knows their names.
func StorageClasses(c *v1alpha1.Contract) []string {
	return strings.FieldsFunc(c.Annotations[annotationStorageClasses], func(r rune) bool { return r == ',' })
}

// SetStorageClasses stores the storage classes of a contract for StorageClasses.
func SetStorageClasses(c *v1alpha1.Contract, names []string) {
	if len(names) == 0 {
		delete(c.Annotations, annotationStorageClasses)
		return
	}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationStorageClasses, strings.Join(names, ","))
}

// SetFulfils stores the Fulfilment of a contract for Fulfils.
func SetFulfils(c *v1alpha1.Contract, f Fulfilment) error {
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("contract %s: %w", c.Name, err)
	}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationFulfils, string(text))
	return nil
}

// Revise replaces a Contract by a later revision. What is not part of the terms stays: its state, and a termination
// that was requested meanwhile.
func Revise(c *v1alpha1.Contract, later peering.Envelope, self peering.ClusterID) error {
	revised, err := NewContract(later, self, c.Spec.ForeignCluster)
	if err != nil {
		return err
	}
	if revised.Name != c.Name || revised.Spec.PeerID != c.Spec.PeerID || revised.Spec.Role != c.Spec.Role || revised.Spec.RequestID != c.Spec.RequestID {
		return fmt.Errorf("contract %s: the later revision is of another contract, peer or request", c.Name)
	}
	if revised.Spec.Revision <= c.Spec.Revision {
		return fmt.Errorf("contract %s: revision %d is not later than revision %d", c.Name, revised.Spec.Revision, c.Spec.Revision)
	}
	keepEarlier(c)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationBefore, c.Spec.Envelope)
	delete(c.Annotations, annotationFulfils)
	revised.Spec.Termination = c.Spec.Termination
	c.Spec = revised.Spec
	return nil
}

// RevisionText says which revision of a contract is in force.
func RevisionText(c *v1alpha1.Contract) string {
	return fmt.Sprintf("revision %d is signed by both, until %s", c.Spec.Revision, c.Spec.NotAfter.UTC().Format(time.RFC3339))
}

// Before returns the terms of the previous revision, if it is stored. Like the terms themselves they come from an
// envelope that both sides signed.
func Before(c *v1alpha1.Contract, self peering.ClusterID) (peering.Terms, bool) {
	text, ok := c.Annotations[annotationBefore]
	if !ok {
		return peering.Terms{}, false
	}
	old := c.DeepCopy()
	old.Spec.Envelope = text
	_, terms, err := ReadContract(old, self)
	return terms, err == nil && terms.RequestID == c.Spec.RequestID
}

// TimeOf returns an optional time; the zero time if it is absent.
func TimeOf(t *metav1.Time) time.Time {
	return ptr.Deref(t, metav1.Time{}).Time
}

func timeTo(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}

// ResourceList returns amounts as Kubernetes writes them.
func ResourceList(r peering.Resources) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for name, amount := range r {
		q, err := resource.ParseQuantity(amount.String())
		if err != nil {
			return nil, fmt.Errorf("amount of %s: %w", name, err)
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}

// Resources returns amounts as values of package peering.
func Resources(list corev1.ResourceList) (peering.Resources, error) {
	texts := make(map[string]string, len(list))
	for name, q := range list {
		texts[string(name)] = q.String()
	}
	return peering.ParseResources(texts)
}

// EndOf returns when a contract is over: when it has drained.
func EndOf(c *v1alpha1.Contract) metav1.Time {
	at := metav1.NewTime(c.Spec.NotAfter.Add(peering.ExpiryGrace))
	if drain := c.Status.DrainUntil; drain != nil && drain.Before(&at) {
		at = *drain
	}
	return at.Rfc3339Copy()
}
