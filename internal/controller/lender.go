package controller

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

const (
	// OfferValidity is how long an advertisement can be signed.
	OfferValidity = time.Minute
	// MaxOffers is how many advertisements may stand, of all peers.
	MaxOffers = 1024
	// MaxOffersPerPeer is how many of them one peer may hold.
	MaxOffersPerPeer = 32
	// MaxContractsPerPeer is how many contracts one peer may hold, closed ones
	// that are still remembered included.
	MaxContractsPerPeer = 64
	// defaultDuration is how long a contract lasts where a policy does not say.
	defaultDuration = 365 * 24 * time.Hour
	// startSkew is how far a contract's begin may differ from this clock.
	startSkew = 10 * time.Minute
)

// Lender answers, as a provider, what peers ask. What it advertised it holds
// back until the offer was signed or lapsed, so that many requests at once never
// get more than there is. Offers live in memory only: after a restart a consumer
// asks again.
type Lender struct {
	Client client.Client
	// Reader reads from the API server itself.
	Reader   client.Reader
	Identity *identity.Identity
	Now      func() time.Time
	// Changed is called when a contract was made.
	Changed func(peer peering.ClusterID)

	mu     sync.Mutex
	offers map[offerKey]wire.Advertisement
}

type offerKey struct {
	peer    peering.ClusterID
	request string
}

// Advertise answers a request by this cluster's policy and what is free.
func (l *Lender) Advertise(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (wire.Advertisement, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	contracts, err := contractsOf(ctx, l.Reader)
	if err != nil {
		return wire.Advertisement{}, err
	}
	l.lapse()
	key := offerKey{peer, ask.RequestID}
	if offer, ok := l.offers[key]; ok {
		return offer, nil
	}
	mine := 0
	for i := range contracts {
		c := &contracts[i]
		if c.Spec.PeerID != string(peer) {
			continue
		}
		if mine++; mine >= MaxContractsPerPeer {
			return wire.Advertisement{}, wire.Errorf(wire.ReasonCapacityExhausted, "this peer holds %d contracts here, and that is the most", mine)
		}
		if c.Spec.Role == v1alpha1.ContractProvider && c.Spec.RequestID == ask.RequestID && inForce(c) {
			return l.readvertise(c)
		}
	}
	policy, err := l.policy(ctx, peer)
	if err != nil {
		return wire.Advertisement{}, err
	}
	have, err := l.capacity(ctx, peer, contracts)
	if err != nil {
		return wire.Advertisement{}, err
	}
	grant, err := peering.Decide(ask, policy, have)
	if err != nil {
		return wire.Advertisement{}, refusal(err)
	}
	if l.held(peer) >= MaxOffersPerPeer || len(l.offers) >= MaxOffers {
		return wire.Advertisement{}, wire.Errorf(wire.ReasonCapacityExhausted, "too many offers stand unsigned; sign or let them lapse, which takes %s", OfferValidity)
	}
	offer := wire.Advertisement{
		ContractID: newContractID(), RequestID: ask.RequestID, Grant: grant,
		ValidUntil: l.Now().UTC().Truncate(time.Second).Add(OfferValidity),
	}
	if l.offers == nil {
		l.offers = map[offerKey]wire.Advertisement{}
	}
	l.offers[key] = offer
	return offer, nil
}

// readvertise repeats the offer of a contract that is in force: its consumer
// lost the answer. Signing it returns the contract as it is.
func (l *Lender) readvertise(c *v1alpha1.Contract) (wire.Advertisement, error) {
	_, terms, err := store.ReadContract(c, l.Identity.ID())
	if err != nil {
		return wire.Advertisement{}, err
	}
	return wire.Advertisement{
		ContractID: terms.ContractID, RequestID: terms.RequestID,
		Grant: peering.Grant{
			Resources: terms.Resources, Duration: terms.NotAfter.Sub(terms.NotBefore), Network: terms.Network,
			PodSecurity: terms.PodSecurity, NodeLabels: terms.NodeLabels,
		},
		ValidUntil: l.Now().UTC().Truncate(time.Second).Add(OfferValidity),
	}, nil
}

func (l *Lender) lapse() {
	now := l.Now()
	for key, offer := range l.offers {
		if !now.Before(offer.ValidUntil) {
			delete(l.offers, key)
		}
	}
}

func (l *Lender) held(peer peering.ClusterID) int {
	n := 0
	for key := range l.offers {
		if key.peer == peer {
			n++
		}
	}
	return n
}

// Sign countersigns what a consumer signed, if it is what was advertised to it.
func (l *Lender) Sign(ctx context.Context, peer peering.ClusterID, envelope peering.Envelope) (peering.Envelope, error) {
	terms, err := envelope.VerifyConsumer()
	if err != nil {
		return peering.Envelope{}, &wire.Error{Reason: wire.ReasonSignatureInvalid, Message: err.Error(), Err: err}
	}
	if terms.Consumer.ID != peer || terms.Provider.ID != l.Identity.ID() {
		return peering.Envelope{}, wire.Errorf(wire.ReasonSignatureInvalid, "the contract is between %s and %s, and the caller is %s", terms.Consumer.ID, terms.Provider.ID, peer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var existing v1alpha1.Contract
	err = l.Reader.Get(ctx, client.ObjectKey{Name: terms.ContractID}, &existing)
	if err == nil {
		return l.signedBefore(&existing, peer)
	}
	if !apierrors.IsNotFound(err) {
		return peering.Envelope{}, fmt.Errorf("read contract %s: %w", terms.ContractID, err)
	}
	l.lapse()
	key := offerKey{peer, terms.RequestID}
	offer, ok := l.offers[key]
	if !ok || offer.ContractID != terms.ContractID {
		return peering.Envelope{}, wire.Errorf(wire.ReasonAdvertisementExpired, "no advertisement %s stands: it lapsed, or this agent was restarted; ask again", terms.ContractID)
	}
	if why := mismatch(offer, terms, l.Now()); why != "" {
		return peering.Envelope{}, wire.Errorf(wire.ReasonContractMismatch, "the contract is not what was advertised: %s", why)
	}
	signed, err := envelope.Sign(rand.Reader, l.Identity.Signer())
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("sign contract %s: %w", terms.ContractID, err)
	}
	fc, err := foreignCluster(ctx, l.Reader, peer)
	if err != nil {
		return peering.Envelope{}, err
	}
	if fc == nil || !fc.DeletionTimestamp.IsZero() {
		return peering.Envelope{}, wire.Errorf(wire.ReasonPeerNotTrusted, "this cluster no longer knows cluster %s", peer)
	}
	contract, err := store.NewContract(signed, l.Identity.ID(), fc.Name)
	if err != nil {
		return peering.Envelope{}, err
	}
	if err := l.Client.Create(ctx, contract, client.FieldOwner(v1alpha1.Manager)); err != nil {
		return peering.Envelope{}, fmt.Errorf("keep contract %s: %w", terms.ContractID, err)
	}
	delete(l.offers, key)
	l.Changed(peer)
	return signed, nil
}

// signedBefore answers for a contract that both sides signed already.
func (l *Lender) signedBefore(c *v1alpha1.Contract, peer peering.ClusterID) (peering.Envelope, error) {
	if c.Spec.PeerID != string(peer) || c.Spec.Role != v1alpha1.ContractProvider {
		return peering.Envelope{}, wire.Errorf(wire.ReasonContractMismatch, "contract %s is not the caller's", c.Name)
	}
	if !inForce(c) || c.Spec.Termination != "" {
		return peering.Envelope{}, wire.Errorf(wire.ReasonContractClosed, "contract %s is over: ask for another", c.Name)
	}
	return peering.ParseEnvelope([]byte(c.Spec.Envelope))
}

// mismatch says in what a contract differs from its offer; empty is in nothing.
func mismatch(offer wire.Advertisement, terms peering.Terms, now time.Time) string {
	got := terms.Resources.Strings()
	for name, amount := range offer.Grant.Resources.Strings() {
		if got[name] != amount {
			return fmt.Sprintf("%s is %q, advertised %q", name, got[name], amount)
		}
	}
	switch {
	case terms.Revision != 1:
		return fmt.Sprintf("its revision is %d, not 1", terms.Revision)
	case len(terms.Resources) != len(offer.Grant.Resources):
		return "it names resources that were not advertised"
	case terms.NotAfter.Sub(terms.NotBefore) > offer.Grant.Duration:
		return fmt.Sprintf("it lasts %s, advertised %s", terms.NotAfter.Sub(terms.NotBefore), offer.Grant.Duration)
	case terms.NotBefore.Sub(now).Abs() > startSkew:
		return fmt.Sprintf("it begins at %s and it is %s here: look at both clocks", terms.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case terms.Network != offer.Grant.Network:
		return "network differs"
	case terms.PodSecurity != offer.Grant.PodSecurity:
		return "Pod Security level differs"
	case !equalLabels(terms.NodeLabels, offer.Grant.NodeLabels):
		return "node labels differ"
	}
	return ""
}

func equalLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// Terminate ends a contract because its other side did.
func (l *Lender) Terminate(ctx context.Context, peer peering.ClusterID, id, _ string) error {
	var c v1alpha1.Contract
	if err := l.Reader.Get(ctx, client.ObjectKey{Name: id}, &c); err != nil {
		return client.IgnoreNotFound(err)
	}
	if c.Spec.PeerID != string(peer) {
		return nil // not the caller's: unknown to it
	}
	return terminate(ctx, l.Client, &c, v1alpha1.TerminatePeer)
}

// policy returns what is lent to a peer: the first policy by name that selects
// it decides.
func (l *Lender) policy(ctx context.Context, peer peering.ClusterID) (peering.Policy, error) {
	p, err := l.selecting(ctx, peer)
	if err != nil {
		return peering.Policy{}, err
	}
	return l.lends(ctx, p)
}

// SameNamespaces returns the names that namespaces of a peer may have here
// unchanged.
func (l *Lender) SameNamespaces(ctx context.Context, peer peering.ClusterID) []string {
	p, err := l.selecting(ctx, peer)
	if err != nil {
		return nil // who cannot be told allows nothing
	}
	return p.Spec.SameNamespaces
}

// selecting returns the policy that decides about a peer.
func (l *Lender) selecting(ctx context.Context, peer peering.ClusterID) (*v1alpha1.PeeringPolicy, error) {
	fc, err := foreignCluster(ctx, l.Client, peer)
	if err != nil {
		return nil, err
	}
	if fc == nil {
		return nil, wire.Errorf(wire.ReasonPeerNotTrusted, "this cluster does not know cluster %s", peer)
	}
	var list v1alpha1.PeeringPolicyList
	if err := l.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.PeeringPolicy) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list.Items {
		p := &list.Items[i]
		selector := labels.Everything()
		if p.Spec.ClusterSelector != nil {
			if selector, err = metav1.LabelSelectorAsSelector(p.Spec.ClusterSelector); err != nil {
				continue // selects nobody
			}
		}
		if selector.Matches(labels.Set(fc.Labels)) {
			return p, nil
		}
	}
	return nil, wire.Errorf(wire.ReasonPolicyRefused, "no PeeringPolicy of the provider selects this cluster: its administrator has to make one")
}

func (l *Lender) lends(ctx context.Context, p *v1alpha1.PeeringPolicy) (peering.Policy, error) {
	ceilings, err := store.Resources(p.Spec.Limits.Resources)
	if err != nil {
		return peering.Policy{}, fmt.Errorf("limits of peering policy %s: %w", p.Name, err)
	}
	policy := peering.Policy{
		Name: p.Name, Accept: p.Spec.Accept == v1alpha1.AcceptAutomatic, Ceilings: ceilings, PercentOfFree: 50,
		Duration: defaultDuration, Network: true,
		PodSecurity: peering.PodSecurity(cmp.Or(p.Spec.PodSecurity, "baseline")),
		NodeLabels:  map[string]string{},
	}
	if p.Spec.ContractDuration != nil {
		policy.Duration = p.Spec.ContractDuration.Duration
	}
	if p.Spec.Limits.PercentOfFree != nil {
		policy.PercentOfFree = int(*p.Spec.Limits.PercentOfFree)
	}
	var nodes corev1.NodeList
	if err := l.Client.List(ctx, &nodes); err != nil {
		return peering.Policy{}, fmt.Errorf("list nodes: %w", err)
	}
	for _, key := range []string{corev1.LabelArchStable, corev1.LabelOSStable} {
		if value := common(nodes.Items, key); value != "" {
			policy.NodeLabels[key] = value
		}
	}
	maps.Copy(policy.NodeLabels, p.Spec.NodeLabels)
	return policy, nil
}

// common returns the value that a label has on all own nodes, or nothing.
func common(nodes []corev1.Node, key string) string {
	value := ""
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelVirtualNode] != "" {
			continue
		}
		if value != "" && n.Labels[key] != value {
			return ""
		}
		value = n.Labels[key]
	}
	return value
}

// capacity returns what is free, and what contracts and offers hold back.
func (l *Lender) capacity(ctx context.Context, peer peering.ClusterID, contracts []v1alpha1.Contract) (peering.Capacity, error) {
	have := peering.Capacity{Lent: peering.Resources{}, LentToPeer: peering.Resources{}}
	var err error
	if have.Free, err = free(ctx, l.Client); err != nil {
		return have, err
	}
	hold := func(id peering.ClusterID, amounts peering.Resources) error {
		if have.Lent, err = have.Lent.Add(amounts); err != nil {
			return err
		}
		if id == peer {
			have.LentToPeer, err = have.LentToPeer.Add(amounts)
		}
		return err
	}
	for i := range contracts {
		c := &contracts[i]
		if c.Spec.Role != v1alpha1.ContractProvider || !inForce(c) {
			continue
		}
		amounts, err := store.Resources(c.Spec.Resources)
		if err != nil {
			return have, fmt.Errorf("resources of contract %s: %w", c.Name, err)
		}
		if err := hold(peering.ClusterID(c.Spec.PeerID), amounts); err != nil {
			return have, err
		}
	}
	for key, offer := range l.offers {
		if err := hold(key.peer, offer.Grant.Resources); err != nil {
			return have, err
		}
	}
	return have, nil
}

func contractsOf(ctx context.Context, c client.Reader) ([]v1alpha1.Contract, error) {
	var list v1alpha1.ContractList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	return list.Items, nil
}

// refusal translates a policy's no.
func refusal(err error) error {
	var no *peering.GrantError
	if !errors.As(err, &no) {
		return err
	}
	reason := wire.ReasonRequestInvalid
	switch no.Reason {
	case peering.GrantPolicyRefused:
		reason = wire.ReasonPolicyRefused
	case peering.GrantCapacityExhausted:
		reason = wire.ReasonCapacityExhausted
	case peering.GrantInvalid:
	}
	return &wire.Error{Reason: reason, Message: no.Message, Err: err}
}

// newContractID returns a name that nobody has: 80 random bits.
func newContractID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "c-" + hex.EncodeToString(b[:])
}
