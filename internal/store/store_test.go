package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const (
	self  = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	other = peering.ClusterID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	third = peering.ClusterID("cccccccccccccccccccccccccccccccc")
)

func newClient(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.ForeignCluster{}).WithObjects(objects...).Build()
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newTokens(t *testing.T) (*Tokens, *clock) {
	t.Helper()
	c := &clock{now: start}
	return &Tokens{Client: newClient(t), Namespace: "entente-system", Now: c.Now}, c
}

var here = []string{"172.30.1.11:30743"}

func TestOnlyAHashOfATokenIsKept(t *testing.T) {
	t.Parallel()
	tokens, _ := newTokens(t)
	token, err := tokens.Mint(t.Context(), self, here, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := start.Add(MaxTokenTTL); !token.Expires.Equal(want) {
		t.Errorf("expires %s, want %s", token.Expires, want)
	}
	var secrets corev1.SecretList
	if err := tokens.Client.List(t.Context(), &secrets); err != nil || len(secrets.Items) != 1 {
		t.Fatalf("%d secrets, error %v", len(secrets.Items), err)
	}
	for key, value := range secrets.Items[0].Data {
		if strings.Contains(string(value), string(token.Secret[:])) {
			t.Errorf("the secret itself is kept under %s", key)
		}
	}
}

func TestATokenIsRedeemedOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after  time.Duration
		by     []peering.ClusterID
		change func(*jointoken.Token)
		want   peering.Reason // of the last redeemer
		says   string
	}{
		"by who has it": {by: []peering.ClusterID{other}},
		"again by the same, whose response was lost": {by: []peering.ClusterID{other, other}},
		"not by a second cluster":                    {by: []peering.ClusterID{other, third}, want: peering.ReasonTokenInvalid, says: "used by another cluster, bbbbbbbb"},
		"not after it expired":                       {by: []peering.ClusterID{other}, after: MaxTokenTTL, want: peering.ReasonTokenInvalid, says: "expired at 2026-11-20T12:15:00Z"},
		"not with another secret":                    {by: []peering.ClusterID{other}, change: func(x *jointoken.Token) { x.Secret[0] ^= 1 }, want: peering.ReasonTokenInvalid, says: "unknown here, wrong, expired, revoked or used"},
		"not under another ID":                       {by: []peering.ClusterID{other}, change: func(x *jointoken.Token) { x.ID = "0" }, want: peering.ReasonTokenInvalid, says: "unknown here, wrong, expired, revoked or used"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens, clock := newTokens(t)
			token, err := tokens.Mint(t.Context(), self, here, MaxTokenTTL)
			if err != nil {
				t.Fatal(err)
			}
			clock.pass(tc.after)
			if tc.change != nil {
				tc.change(&token)
			}
			for _, by := range tc.by {
				_, err = tokens.Redeem(t.Context(), token.ID, token.Secret, by)
			}
			if tc.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if got := wire.ReasonOf(err); got != tc.want || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %s saying %q", err, tc.want, tc.says)
			}
		})
	}
}

func TestOfAHundredRedeemersExactlyOneWins(t *testing.T) {
	t.Parallel()
	tokens, _ := newTokens(t)
	token, err := tokens.Mint(t.Context(), self, here, 0)
	if err != nil {
		t.Fatal(err)
	}
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	results := make(chan error, 100)
	for i := range 100 {
		by := peering.ClusterID(strings.Repeat(string(alphabet[i%32]), 31) + string(alphabet[i/32]))
		go func() {
			_, err := tokens.Redeem(context.WithoutCancel(t.Context()), token.ID, token.Secret, by)
			results <- err
		}()
	}
	won := 0
	for range 100 {
		switch err := <-results; {
		case err == nil:
			won++
		case wire.ReasonOf(err) != peering.ReasonTokenInvalid:
			t.Errorf("a loser got %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d won", won)
	}
}

func TestOutstandingTokensAreBounded(t *testing.T) {
	t.Parallel()
	tokens, clock := newTokens(t)
	for range MaxTokens {
		if _, err := tokens.Mint(t.Context(), self, here, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tokens.Mint(t.Context(), self, here, time.Minute); wire.ReasonOf(err) != peering.ReasonTokensOutstanding {
		t.Errorf("error %v, want %s", err, peering.ReasonTokensOutstanding)
	}
	clock.pass(time.Minute)
	if _, err := tokens.Mint(t.Context(), self, here, time.Minute); err != nil {
		t.Errorf("after the others expired: %v", err)
	}
	var left corev1.SecretList
	if err := tokens.Client.List(t.Context(), &left); err != nil || len(left.Items) != 1 {
		t.Errorf("%d secrets are left, error %v; want the new one", len(left.Items), err)
	}
}

func TestATokenNeedsAnEndpoint(t *testing.T) {
	t.Parallel()
	tokens, _ := newTokens(t)
	if _, err := tokens.Mint(t.Context(), self, nil, 0); wire.ReasonOf(err) != peering.ReasonNoEndpoint {
		t.Errorf("error %v, want %s", err, peering.ReasonNoEndpoint)
	}
}

func TestSeveralAgentsThatStartAreOneCluster(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	ids := make(chan peering.ClusterID, 8)
	for range cap(ids) {
		go func() {
			id, err := LoadIdentity(context.WithoutCancel(t.Context()), c, "entente-system", time.Now())
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			ids <- id.ID()
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first || id == "" {
			t.Errorf("one is %q, another %q", first, id)
		}
	}
}

// counting counts what the API server is asked for: all ForeignClusters, and to make
// one or to change the status of one.
type counting struct {
	client.Client
	all, written int
}

func (c *counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if len(opts) == 0 {
		c.all++
	}
	return c.Client.List(ctx, list, opts...)
}

func (c *counting) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.written++
	return c.Client.Create(ctx, o, opts...)
}

func (c *counting) Status() client.SubResourceWriter {
	c.written++
	return c.Client.Status()
}

func TestAJoinAsksTheAPIServerForOneClusterOnly(t *testing.T) {
	t.Parallel()
	id, err := identity.Generate(start)
	if err != nil {
		t.Fatal(err)
	}
	info := identity.ClusterInfo{Name: "milan", Endpoints: here, Bundle: id.TrustBundle()}
	called := func(name string, id peering.ClusterID, labels map[string]string) *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(id)},
		}
	}
	labelled := map[string]string{v1alpha1.LabelPeer: string(id.ID())}
	for _, tc := range []struct {
		name          string
		cached, there []client.Object
		want          string
		all, written  int
	}{
		{name: "no cluster is known", want: "milan", written: 1},
		{name: "another has the name", cached: []client.Object{called("milan", other, nil)}, there: []client.Object{called("milan", other, nil)}, want: "milan-" + id.ID().Short(), written: 1},
		{name: "another has the name and the cache lags", there: []client.Object{called("milan", other, nil)}, want: "milan-" + id.ID().Short(), all: 1, written: 2},
		{name: "it is known and the cache lags", there: []client.Object{called("office", id.ID(), labelled)}, want: "office", written: 1},
		{name: "it was written by hand and has no label yet", cached: []client.Object{called("office", id.ID(), nil)}, there: []client.Object{called("office", id.ID(), nil)}, want: "office", all: 1, written: 1},
		{name: "it was deleted and the cache lags", cached: []client.Object{called("office", id.ID(), labelled)}, want: "milan", all: 1, written: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			direct := &counting{Client: newClient(t, tc.there...)}
			name, err := AddPeer(t.Context(), direct, newClient(t, tc.cached...), id.ID(), info, "")
			if err != nil || name != tc.want {
				t.Fatalf("it is called %s (%v), want %s", name, err, tc.want)
			}
			if direct.all != tc.all || direct.written != tc.written {
				t.Errorf("the API server was asked %d times for all and wrote %d times, want %d and %d", direct.all, direct.written, tc.all, tc.written)
			}
			var fc v1alpha1.ForeignCluster
			if err := direct.Get(t.Context(), client.ObjectKey{Name: name}, &fc); err != nil {
				t.Fatal(err)
			}
			if fc.Spec.ClusterID != string(id.ID()) || fc.Spec.TrustBundle != info.PEM() {
				t.Errorf("it is %+v", fc.Spec)
			}
			if made := name != "office"; made && !slices.Contains(fc.Finalizers, v1alpha1.Finalizer) {
				t.Error("a trusted cluster has no finalizer")
			}
		})
	}
}

func TestAddPeerNamesClusters(t *testing.T) {
	t.Parallel()
	info := func(name string) (peering.ClusterID, identity.ClusterInfo) {
		id, err := identity.Generate(start)
		if err != nil {
			t.Fatal(err)
		}
		return id.ID(), identity.ClusterInfo{Name: name, Endpoints: here, Bundle: id.TrustBundle()}
	}
	c := newClient(t)
	add := func(id peering.ClusterID, info identity.ClusterInfo, wanted string) string {
		t.Helper()
		name, err := AddPeer(t.Context(), c, nil, id, info, wanted)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	milan, milanInfo := info("milan")
	if got := add(milan, milanInfo, ""); got != "milan" {
		t.Errorf("a cluster that calls itself milan is called %s", got)
	}
	if got := add(milan, milanInfo, "rome"); got != "milan" {
		t.Errorf("a cluster that is known is renamed to %s", got)
	}
	namesake, namesakeInfo := info("milan")
	if got, want := add(namesake, namesakeInfo, ""), "milan-"+namesake.Short(); got != want {
		t.Errorf("a second milan is called %s, want %s", got, want)
	}
	nameless, namelessInfo := info("")
	if got, want := add(nameless, namelessInfo, ""), "peer-"+nameless.Short(); got != want {
		t.Errorf("a cluster without a name is called %s, want %s", got, want)
	}
	rome, romeInfo := info("x")
	if _, err := AddPeer(t.Context(), c, nil, rome, romeInfo, "milan"); wire.ReasonOf(err) != peering.ReasonPeerNameTaken {
		t.Errorf("a name that another has is assigned: %v", err)
	}
	var fc v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKey{Name: "milan"}, &fc); err != nil {
		t.Fatal(err)
	}
	if fc.NameConfirmed() {
		t.Error("a name that a cluster gave itself counts as chosen")
	}
	if add(rome, romeInfo, "rome") != "rome" || add(milan, milanInfo, "milan") != "milan" {
		t.Error("who is called as it was asked is called otherwise")
	}
	for _, name := range []string{"rome", "milan"} {
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &fc); err != nil || !fc.NameConfirmed() {
			t.Errorf("%s was asked for by an administrator and does not count as chosen: %v", name, err)
		}
	}
	if fc.Spec.ClusterID != string(milan) || !strings.Contains(fc.Spec.TrustBundle, "BEGIN CERTIFICATE") {
		t.Errorf("milan is %+v", fc.Spec)
	}
}

func contract(t *testing.T, consumer, provider *identity.Identity) peering.Envelope {
	t.Helper()
	resources, err := peering.ParseResources(map[string]string{"cpu": "1500m", "memory": "4Gi", "pods": "20"})
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := peering.NewEnvelope(peering.Terms{
		ContractID: "c-1", RequestID: "request", Revision: 1, Consumer: consumer.Party(), Provider: provider.Party(), NotBefore: start, NotAfter: start.Add(time.Hour),
		Clauses: peering.Clauses{
			Resources: resources, Network: true, PodSecurity: peering.PodSecurityBaseline, Exposure: peering.ExposureOffloaded,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []*identity.Identity{consumer, provider} {
		if envelope, err = envelope.Sign(nil, id.ID(), id.Signer()); err != nil {
			t.Fatal(err)
		}
	}
	return envelope
}

func TestAContractReadsBackAsWhatWasSigned(t *testing.T) {
	t.Parallel()
	consumer, err1 := identity.Generate(start)
	provider, err2 := identity.Generate(start)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	stored, err := NewContract(contract(t, consumer, provider), consumer.ID(), "milan")
	if err != nil {
		t.Fatal(err)
	}
	if stored.Spec.Role != v1alpha1.ContractConsumer || stored.Spec.PeerID != string(provider.ID()) ||
		stored.Spec.Resources.Cpu().String() != "1500m" || stored.Spec.Network != v1alpha1.NetworkTunnel {
		t.Errorf("stored as %+v", stored.Spec)
	}
	value, terms, err := ReadContract(stored, consumer.ID())
	if err != nil {
		t.Fatal(err)
	}
	if value.State != peering.Active || value.Role != peering.Consumer || terms.Resources["pods"].String() != "20" {
		t.Errorf("reads as %+v of %+v", value, terms)
	}
}

func TestAWriterOfResourcesCannotChangeSignedTerms(t *testing.T) {
	t.Parallel()
	consumer, err1 := identity.Generate(start)
	provider, err2 := identity.Generate(start)
	stranger, err3 := identity.Generate(start)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*v1alpha1.Contract){
		"another contract's envelope": func(c *v1alpha1.Contract) { c.Name = "c-2" },
		"another peer":                func(c *v1alpha1.Contract) { c.Spec.PeerID = string(stranger.ID()) },
		"a changed payload": func(c *v1alpha1.Contract) {
			c.Spec.Envelope = strings.Replace(c.Spec.Envelope, `"payload":"`, `"payload":"AAAA`, 1)
		},
		"no envelope": func(c *v1alpha1.Contract) { c.Spec.Envelope = "" },
		"a stranger's contract": func(c *v1alpha1.Contract) {
			text, err := contract(t, stranger, provider).Marshal()
			if err != nil {
				t.Fatal(err)
			}
			c.Spec.Envelope = string(text)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored, err := NewContract(contract(t, consumer, provider), consumer.ID(), "milan")
			if err != nil {
				t.Fatal(err)
			}
			reader := NewContractReader(4)
			if _, _, err := reader.Read(stored, consumer.ID()); err != nil {
				t.Fatal(err)
			}
			edit(stored)
			if _, _, err := ReadContract(stored, consumer.ID()); err == nil {
				t.Error("it is taken for a contract")
			}
			if _, _, err := reader.Read(stored, consumer.ID()); err == nil {
				t.Error("it is taken for a contract by who verified another before")
			}
		})
	}
}

// Each object of a peer asks for its contract: signatures are verified once.
func TestAContractIsVerifiedOnce(t *testing.T) {
	consumer, err1 := identity.Generate(start)
	provider, err2 := identity.Generate(start)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	stored, err := NewContract(contract(t, consumer, provider), consumer.ID(), "milan")
	if err != nil {
		t.Fatal(err)
	}
	reader := NewContractReader(4)
	read := func() peering.Contract {
		value, terms, err := reader.Read(stored, consumer.ID())
		if err != nil || terms.Resources["pods"].String() != "20" {
			t.Fatalf("reads as %+v of %+v, %v", value, terms, err)
		}
		return value
	}
	read()
	verifies := testing.AllocsPerRun(10, func() { _, _, _ = ReadContract(stored, consumer.ID()) })
	if remembers := testing.AllocsPerRun(10, func() { read() }); remembers > verifies/10 {
		t.Errorf("reading it again allocates %v times, verifying it %v times", remembers, verifies)
	}
	stored.Status.Phase = "Closed"
	if value := read(); value.State != peering.Closed {
		t.Errorf("closed it reads as %+v", value)
	}
}
