// Package peertest is what tests of how clusters come to trust each other share: a fake
// API server, a clock that they move, and other clusters.
package peertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/introduce"
	"github.com/entente-dev/entente/peering/jointoken"
)

// Now is when most tests take place.
//
//nolint:gochecknoglobals // a time cannot be a constant
var Now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Clock is a clock that a test moves.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that stands at a time.
func NewClock(at time.Time) *Clock { return &Clock{now: at} }

// Now is what it shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Pass moves it on.
func (c *Clock) Pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Client is a fake API server with the indexes of the agent's cache.
func Client(t testing.TB, objects ...client.Object) client.WithWatch {
	t.Helper()
	return Indexed(fake.NewClientBuilder().WithScheme(Scheme(t)).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ForeignCluster{}, &v1alpha1.Contract{}, &v1alpha1.ExternalHost{}, &v1alpha1.ImportedService{}, &v1alpha1.NamespaceOffloading{}, &corev1.Node{}))
}

// Other is another cluster and its ClusterInfo.
type Other struct {
	ID   peering.ClusterID
	Info identity.ClusterInfo
}

// NewOther makes one.
func NewOther(t testing.TB, name string) Other {
	t.Helper()
	id, err := identity.Generate(Now)
	if err != nil {
		t.Fatal(err)
	}
	return Other{ID: id.ID(), Info: identity.ClusterInfo{Name: name, Endpoints: []string{"192.0.2.1:7443"}, Bundle: id.TrustBundle()}}
}

// PeersOf lists the ForeignClusters.
func PeersOf(t testing.TB, c client.Client) []v1alpha1.ForeignCluster {
	t.Helper()
	var list v1alpha1.ForeignClusterList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// PeerCalled reads one.
func PeerCalled(t testing.TB, c client.Client, name string) *v1alpha1.ForeignCluster {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &fc); err != nil {
		t.Fatal(err)
	}
	return &fc
}

// ForgottenAt keeps there who is forgotten.
func ForgottenAt(c client.Client, now func() time.Time) *store.Forgotten {
	return &store.Forgotten{Client: c, Namespace: "entente-system", Now: now}
}

// OwnID is the ID of the cluster under test.
const OwnID = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")

// Introductions is what answers introductions.
type Introductions interface {
	Introduce(ctx context.Context, id peering.ClusterID, from string, info identity.ClusterInfo, commitment peering.Hash, requested bool) ([32]byte, error)
	Reveal(ctx context.Context, id peering.ClusterID, nonce [32]byte) error
}

// IntroduceAs makes a whole introduction, and returns the code that the caller computes.
func IntroduceAs(t testing.TB, r Introductions, o Other, from string, requested bool) (string, error) {
	t.Helper()
	var nonce [32]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		t.Fatal(err)
	}
	theirs, err := r.Introduce(t.Context(), o.ID, from, o.Info, introduce.Commitment(o.ID, nonce), requested)
	if err != nil {
		return "", err
	}
	return introduce.Code(o.ID, nonce, OwnID, theirs), r.Reveal(t.Context(), o.ID, nonce)
}

// Failing is an API server that takes no new objects.
type Failing struct{ client.Client }

// Create implements client.Client.
func (Failing) Create(context.Context, client.Object, ...client.CreateOption) error {
	return errors.New("etcd is full")
}

// Indexed builds a client with the indexes of the agent's cache.
func Indexed(b *fake.ClientBuilder) client.WithWatch {
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.Build()
}

// Scheme has all kinds that are used.
func Scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// Recorder remembers events.
type Recorder struct {
	mu     sync.Mutex
	Events []string
}

// Eventf implements events.EventRecorder.
func (r *Recorder) Eventf(_, _ runtime.Object, kind, reason, _, _ string, _ ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Events = append(r.Events, kind+" "+reason)
}

// TrustedAs is a cluster that is trusted, by a name.
func TrustedAs(name string, o Other) *v1alpha1.ForeignCluster {
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(o.ID), TrustBundle: o.Info.PEM(), Endpoints: o.Info.Endpoints}
	return fc
}

// ContractWith is a contract with a cluster that is in force.
func ContractWith(o Other, name string, role v1alpha1.ContractRole) *v1alpha1.Contract {
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelPeer: string(o.ID)}}}
	c.Spec.Role, c.Spec.PeerID, c.Spec.Network = role, string(o.ID), v1alpha1.NetworkTunnel
	c.Status.Phase = peering.PhaseActive.String()
	return c
}

// SightedID is a cluster ID that ends in a number.
func SightedID(n int) peering.ClusterID {
	digits := strings.NewReplacer("0", "a", "1", "b", "8", "c", "9", "d")
	return peering.ClusterID(strings.Repeat("a", 26) + digits.Replace(fmt.Sprintf("%06d", n)))
}

// Sighted is one cluster at one place.
type Sighted struct {
	ID peering.ClusterID
	v1alpha1.Sighting
}

// LAN is a cluster that is found on a LAN.
func LAN(n int, where string, edit ...func(*v1alpha1.Sighting)) Sighted {
	s := Sighted{ID: SightedID(n), Sighting: v1alpha1.Sighting{
		Source: v1alpha1.SourceLAN, Location: where, Node: "n1", Name: fmt.Sprint("c", n),
		Endpoints: []string{fmt.Sprintf("192.0.2.%d:7443", n%250+1)}, LastSeenTime: metav1.NewTime(Now),
	}}
	for _, e := range edit {
		e(&s.Sighting)
	}
	return s
}

// DNS is one that is found in a domain.
func DNS(n int, domain string, edit ...func(*v1alpha1.Sighting)) Sighted {
	s := LAN(n, domain, edit...)
	s.Source, s.Node = v1alpha1.SourceDNS, ""
	return s
}

// HintOf is a ForeignCluster that is there for a sighting only.
func HintOf(name string, all ...Sighted) v1alpha1.ForeignCluster {
	fc := v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: string(all[0].ID)},
			Annotations: map[string]string{v1alpha1.AnnotationDiscovered: "true"},
		},
		Spec:   v1alpha1.ForeignClusterSpec{ClusterID: string(all[0].ID)},
		Status: v1alpha1.ForeignClusterStatus{Source: all[0].Source},
	}
	for _, s := range all {
		fc.Status.Sightings = append(fc.Status.Sightings, s.Sighting)
		fc.Spec.Endpoints = append(fc.Spec.Endpoints, s.Endpoints...)
	}
	return fc
}

// TrustedPeer is a sighted cluster that is trusted.
func TrustedPeer(name string, n int, endpoints ...string) v1alpha1.ForeignCluster {
	return v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: string(SightedID(n)), TrustBundle: "roots", Endpoints: endpoints},
		Status:     v1alpha1.ForeignClusterStatus{Source: v1alpha1.SourceToken},
	}
}

// Strangers is other clusters in memory.
type Strangers struct {
	mu     sync.Mutex
	Redeem func(jointoken.Token) (identity.ClusterInfo, error)
	Answer func(endpoint string, id peering.ClusterID) (identity.ClusterInfo, string, error)
	Joins  int
	Intros int
	// Requested is whether the last introduction was an administrator's.
	Requested bool
	Updates   int
	Updating  error
}

// Join implements trust.Strangers.
func (f *Strangers) Join(_ context.Context, token jointoken.Token) (identity.ClusterInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Joins++
	return f.Redeem(token)
}

// Introduce implements trust.Strangers.
func (f *Strangers) Introduce(_ context.Context, endpoint string, id peering.ClusterID, requested bool) (identity.ClusterInfo, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Intros++
	f.Requested = requested
	return f.Answer(endpoint, id)
}

// UpdateBundle implements trust.Strangers.
func (f *Strangers) UpdateBundle(context.Context, peering.ClusterID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Updates++
	return f.Updating
}

// ApprovedPeer is a peer that an administrator approved, and that is trusted.
func ApprovedPeer(name string, o Other) *v1alpha1.ForeignCluster {
	fc := TrustedAs(name, o)
	fc.Spec.Decision = v1alpha1.DecisionApproved
	fc.Finalizers = []string{v1alpha1.Finalizer}
	return fc
}

// ApprovedAs is a cluster that an administrator named and approved.
func ApprovedAs(name string, o Other, endpoints ...string) *v1alpha1.ForeignCluster {
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(Now)}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(o.ID), Decision: v1alpha1.DecisionApproved, Endpoints: endpoints}
	return fc
}
