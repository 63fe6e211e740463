package automatic

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// lowestID is that of a cluster that always dials first.
const lowestID = peering.ClusterID("22222222222222222222222222222222")

// automaticTest is an Automatic that reconciles when the test calls it.
type automaticTest struct {
	*Automatic
	clock  *peertest.Clock
	milan  peertest.Other
	events *peertest.Recorder
	// during is what happens while Milan is called.
	during func()

	mu    sync.Mutex
	calls []string
	err   error
	said  []string
	valid metav1.Condition
}

func newAutomaticTest(t *testing.T, objects ...client.Object) *automaticTest {
	t.Helper()
	c := peertest.Indexed(fake.NewClientBuilder().WithScheme(peertest.Scheme(t)).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ForeignCluster{}, &v1alpha1.PeeringPolicy{}, &v1alpha1.PeeringRequest{}, &v1alpha1.NamespaceOffloading{}))
	at := &automaticTest{clock: peertest.NewClock(time.Now()), milan: peertest.NewOther(t, "milan"), events: &peertest.Recorder{}}
	call := func(what string) error {
		at.mu.Lock()
		defer at.mu.Unlock()
		at.calls = append(at.calls, what)
		if at.during != nil {
			at.during()
		}
		return at.err
	}
	at.Automatic = &Automatic{
		Valid:   func(context.Context, string) (metav1.Condition, error) { return at.valid, nil },
		MayDial: func(string) bool { return true },
		Client:  c, Direct: c, Namespace: "entente-system", Self: lowestID, Events: at.events, Log: slog.New(slog.DiscardHandler),
		Forgotten: peertest.ForgottenAt(c, at.clock.Now), Now: at.clock.Now, Random: none,
		Introduce: func(_ context.Context, endpoint string, _ peering.ClusterID) (identity.ClusterInfo, string, error) {
			return at.milan.Info, "042917", call("introduce " + endpoint)
		},
		JoinGroup: func(ctx context.Context, group, endpoint string, id peering.ClusterID) error {
			if err := call("prove " + group + " " + endpoint); err != nil {
				return err
			}
			return at.Admit(ctx, id, at.milan.Info, "home", group)
		},
		AttemptChanged: func(name string) { at.said = append(at.said, name) },
	}
	return at
}

// looks reconciles, and waits for the calls.
func (at *automaticTest) looks(t *testing.T) {
	t.Helper()
	for range 2 {
		if _, err := at.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		at.Automatic.calls.Wait()
	}
}

// found has discovery find Milan.
func (at *automaticTest) found(t *testing.T) {
	t.Helper()
	seen := []v1alpha1.Sighting{{Source: v1alpha1.SourceLAN, Location: "eth0", Endpoints: []string{"192.0.2.1:7443"}, LastSeenTime: metav1.NewTime(at.clock.Now())}}
	if _, made, err := store.Sight(t.Context(), at.Client, at.milan.ID, "milan", seen); err != nil || !made {
		t.Fatalf("made %t: %v", made, err)
	}
}

func (at *automaticTest) make(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := at.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

func (at *automaticTest) remove(t *testing.T, o client.Object) {
	t.Helper()
	if err := at.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// trusted reports by the session that trust is mutual.
func (at *automaticTest) mutual(t *testing.T, name string) {
	t.Helper()
	fc := peertest.PeerCalled(t, at.Client, name)
	meta.SetStatusCondition(&fc.Status.Conditions, store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Approved", ""))
	if err := at.Client.Status().Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
}

// objects returns what there is that policies make.
func (at *automaticTest) objects(t *testing.T) []string {
	t.Helper()
	var out []string
	var requests v1alpha1.PeeringRequestList
	var offloading v1alpha1.NamespaceOffloadingList
	if err := at.Client.List(t.Context(), &requests); err != nil {
		t.Fatal(err)
	}
	if err := at.Client.List(t.Context(), &offloading); err != nil {
		t.Fatal(err)
	}
	for _, r := range requests.Items {
		out = append(out, "request "+r.Name)
	}
	for _, o := range offloading.Items {
		out = append(out, "offloading of "+o.Namespace)
	}
	for _, fc := range peertest.PeersOf(t, at.Client) {
		if fc.DeletionTimestamp.IsZero() {
			out = append(out, "peer "+fc.Name)
		}
	}
	slices.Sort(out)
	return out
}

func policyCalled(name string, edit func(*v1alpha1.AutomaticPeering)) *v1alpha1.PeeringPolicy {
	p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}, Spec: v1alpha1.PeeringPolicySpec{Automatic: &v1alpha1.AutomaticPeering{}}}
	edit(p.Spec.Automatic)
	return p
}

func namespaced(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestPolicyPeersAndEnds lets a policy trust a cluster that is found, and then no longer.
func TestPolicyPeersAndEnds(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, namespaced("shop"), namespaced("mine"))
	p := policyCalled("home", func(a *v1alpha1.AutomaticPeering) {
		a.ClusterIDs, a.Namespaces = []string{string(at.milan.ID)}, []string{"shop", "mine", "absent"}
	})
	own := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "offloading"}}
	ask := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: "elsewhere"}}
	at.make(t, p, own, ask)
	at.found(t)
	at.looks(t)
	at.clock.Pass(laterAfter) // the other's ID may be the lower one
	at.looks(t)
	fc := peertest.PeerCalled(t, at.Client, "milan")
	if fc.Spec.TrustBundle != at.milan.Info.PEM() || fc.Labels[v1alpha1.LabelAutomatic] != "home" || fc.Annotations[v1alpha1.AnnotationAutomaticBy] != "ClusterID" || !slices.Contains(fc.Finalizers, v1alpha1.Finalizer) {
		t.Fatalf("it is kept as %+v", fc)
	}
	if want := []string{"introduce 192.0.2.1:7443"}; !slices.Equal(at.calls, want) {
		t.Errorf("calls %q, want %q", at.calls, want)
	}
	if got, want := at.objects(t), []string{"offloading of mine", "offloading of shop", "peer milan", "request by-hand"}; !slices.Equal(got, want) {
		t.Errorf("before it trusts this cluster there are %q, want %q", got, want)
	}
	at.mutual(t, "milan")
	at.looks(t)
	full := []string{"offloading of mine", "offloading of shop", "peer milan", "request automatic-milan", "request by-hand"}
	if got := at.objects(t); !slices.Equal(got, full) {
		t.Errorf("there are %q, want %q", got, full)
	}
	var status v1alpha1.PeeringPolicy
	if err := at.Client.Get(t.Context(), client.ObjectKey{Name: "home"}, &status); err != nil {
		t.Fatal(err)
	}
	if s := status.Status; !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAutomatic) || s.Automatic == nil || s.Automatic.Peers != 1 || s.Automatic.Pending != 0 {
		t.Errorf("the policy's condition is %+v", s)
	}
	if !slices.Contains(at.events.Events, "Warning LeftAlone") || !slices.Contains(at.events.Events, "Normal PeeredByPolicy") {
		t.Errorf("events %q", at.events.Events)
	}
	// Replaced, as Helm does.
	at.remove(t, p)
	at.looks(t)
	at.clock.Pass(policyGone - time.Second)
	at.looks(t)
	if got := at.objects(t); !slices.Equal(got, full) {
		t.Errorf("while the policy is replaced there are %q, want %q", got, full)
	}
	at.clock.Pass(2 * time.Second)
	at.looks(t)
	if got, want := at.objects(t), []string{"offloading of mine", "request by-hand"}; !slices.Equal(got, want) {
		t.Errorf("without the policy there are %q, want %q", got, want)
	}
	if fc = peertest.PeerCalled(t, at.Client, "milan"); fc.Annotations[v1alpha1.AnnotationAutomaticEnded] != "true" {
		t.Error("it is forgotten as if an administrator had decided")
	}
}

// labels returns the labels of an object as they are stored.
func (at *automaticTest) labels(t *testing.T, o client.Object) map[string]string {
	t.Helper()
	if err := at.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	return o.GetLabels()
}

// TestPersonTakesAPeerOver has a person keep a policy's peer, and then end the policy: what
// runs there goes on, with what the cache shows of the ForeignCluster late or in time.
func TestPersonTakesAPeerOver(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(*v1alpha1.ForeignCluster){
		"the label is taken off": func(fc *v1alpha1.ForeignCluster) { delete(fc.Labels, v1alpha1.LabelAutomatic) },
		"it is approved":         (*v1alpha1.ForeignCluster).TakeFromPolicy,
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", name, late), func(t *testing.T) {
				t.Parallel()
				at := newAutomaticTest(t, namespaced("shop"))
				p := policyCalled("home", func(a *v1alpha1.AutomaticPeering) {
					a.ClusterIDs, a.Namespaces = []string{string(at.milan.ID)}, []string{"shop"}
				})
				at.make(t, p)
				at.found(t)
				at.looks(t)
				at.clock.Pass(laterAfter)
				at.looks(t)
				at.mutual(t, "milan")
				at.looks(t)
				kept := []string{"offloading of shop", "peer milan", "request automatic-milan"}
				if got := at.objects(t); !slices.Equal(got, kept) {
					t.Fatalf("there are %q, want %q", got, kept)
				}
				before := peertest.PeerCalled(t, at.Client, "milan")
				fc := before.DeepCopy()
				take(fc)
				if err := at.Client.Update(t.Context(), fc); err != nil {
					t.Fatal(err)
				}
				if late {
					// The policy ends in the same moment, and of the two that is seen first.
					at.labels(t, p)
					p.Spec.Automatic.ClusterIDs, p.Spec.Automatic.Namespaces = []string{string(peertest.SightedID(9))}, nil
					if err := at.Client.Update(t.Context(), p); err != nil {
						t.Fatal(err)
					}
					at.Client = stale{at.Direct, before}
					_, _ = at.reconcile(t.Context()) // a conflict is seen by the next reconciliation
					at.Client = at.Direct
				}
				at.looks(t)
				request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "automatic-milan"}}
				if at.labels(t, request)[v1alpha1.LabelAutomatic] != "" {
					t.Errorf("the request is a policy's: %v", request.Labels)
				}
				at.remove(t, p)
				at.looks(t)
				at.clock.Pass(2 * policyGone)
				at.looks(t)
				if got := at.objects(t); !slices.Equal(got, kept) {
					t.Errorf("there are %q, want %q", got, kept)
				}
				offloading := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName}}
				if at.labels(t, offloading)[v1alpha1.LabelAutomatic] != "" {
					t.Errorf("the offloading is a policy's: %v", offloading.Labels)
				}
				selector, err := metav1.LabelSelectorAsSelector(offloading.Spec.ClusterSelector)
				if fc := peertest.PeerCalled(t, at.Client, "milan"); err != nil || !selector.Matches(labels.Set(fc.Labels)) {
					t.Errorf("pods of the namespace are not sent there any more: %s, %v: %v", selector, fc.Labels, err)
				}
				if !slices.Contains(at.events.Events, "Normal TakenOver") {
					t.Errorf("events %q", at.events.Events)
				}
			})
		}
	}
}

// stale is a cache that shows a ForeignCluster as it was.
type stale struct {
	client.Client
	was *v1alpha1.ForeignCluster
}

func (c stale) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Client.List(ctx, list, opts...)
	if all, ok := list.(*v1alpha1.ForeignClusterList); ok && err == nil {
		all.Items = []v1alpha1.ForeignCluster{*c.was}
	}
	return err
}

// TestEndThatCameToNothingIsForgotten has a policy be about to let a peer go, and then
// want it again, or an administrator take it over.
func TestEndThatCameToNothingIsForgotten(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(t *testing.T, at *automaticTest){
		"it wants it again": func(t *testing.T, at *automaticTest) { at.looks(t) },
		"it was denied": func(t *testing.T, at *automaticTest) {
			fc := peertest.PeerCalled(t, at.Client, "milan")
			fc.Spec.Decision = v1alpha1.DecisionDenied
			if err := at.Client.Update(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
			at.looks(t)
		},
		"it joined with a token": func(t *testing.T, at *automaticTest) {
			if _, err := store.AddPeer(t.Context(), at.Client, nil, at.milan.ID, at.milan.Info, ""); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newAutomaticTest(t)
			at.make(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
			at.found(t)
			at.looks(t)
			fc := peertest.PeerCalled(t, at.Client, "milan")
			metav1.SetMetaDataAnnotation(&fc.ObjectMeta, v1alpha1.AnnotationAutomaticEnded, "true") // and the deletion failed
			if err := at.Client.Update(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
			then(t, at)
			if fc := peertest.PeerCalled(t, at.Client, "milan"); fc.Annotations[v1alpha1.AnnotationAutomaticEnded] != "" || fc.Spec.TrustBundle == "" {
				t.Errorf("it is %+v", fc.ObjectMeta)
			}
		})
	}
}

func TestGroupSecretIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t)
	p := policyCalled("home", func(a *v1alpha1.AutomaticPeering) {
		a.Group = &v1alpha1.PeeringGroup{Name: "garage", SecretRef: v1alpha1.SecretKey{Name: "garage", Key: "secret"}}
	})
	at.make(t, p)
	at.found(t)
	hint := "milan-" + at.milan.ID.Short()
	at.err = peering.Errorf(peering.ReasonGroupSecretMismatch, "no")
	says := func(reason string) {
		t.Helper()
		at.looks(t)
		var p v1alpha1.PeeringPolicy
		if err := at.Client.Get(t.Context(), client.ObjectKey{Name: "home"}, &p); err != nil {
			t.Fatal(err)
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAutomatic); c == nil || c.Reason != reason {
			t.Errorf("the policy's condition is %+v, want %s", c, reason)
		}
	}
	says("SecretMissing")
	if _, _, err := at.GroupSecret(t.Context(), "garage"); peering.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Errorf("without a secret the group is known: %v", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "garage"}, Data: map[string][]byte{"secret": []byte("short")}}
	at.make(t, secret)
	at.secrets.Clear() // as the watch has it
	says("SecretUnusable")
	if len(at.calls) > 0 {
		t.Fatalf("calls %q without a secret", at.calls)
	}
	secret.Data["secret"] = []byte("0123456789abcdef")
	if err := at.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	at.secrets.Clear()
	says("Peering")
	at.clock.Pass(laterAfter)
	at.looks(t)
	if said := at.Attempt(peertest.PeerCalled(t, at.Client, hint)); said.Reason != "GroupSecretMismatch" || strings.Contains(said.Message, "0123") || at.said[len(at.said)-1] != hint {
		t.Errorf("the attempt is %+v, to be shown for %q", said, at.said)
	}
	if !slices.Contains(at.events.Events, "Warning GroupSecretMismatch") {
		t.Errorf("events %q", at.events.Events)
	}
	policy, got, err := at.GroupSecret(t.Context(), "garage")
	if policy != "home" || string(got) != "0123456789abcdef" || err != nil {
		t.Errorf("policy %s, %v", policy, err)
	}
	// Another secret is tried at once.
	at.err = nil
	secret.Data["secret"] = []byte("fedcba9876543210")
	if err := at.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	at.secrets.Clear()
	at.clock.Pass(endpointPause)
	at.looks(t)
	if fc := peertest.PeerCalled(t, at.Client, "milan"); fc.Annotations[v1alpha1.AnnotationAutomaticBy] != "Group/garage" || fc.Spec.TrustBundle == "" {
		t.Errorf("it is kept as %+v", fc)
	}
	// A Secret that is gone for a moment ends nothing.
	at.remove(t, secret)
	at.secrets.Clear()
	says("SecretMissing")
	if got, want := at.objects(t), []string{"peer milan"}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

// TestALaterReasonReplacesTheEarlierOne has Milan not know the group at first, then prove it with
// another secret, and then the policy here end.
func TestALaterReasonReplacesTheEarlierOne(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "garage"}, Data: map[string][]byte{"secret": []byte("0123456789abcdef")}})
	p := policyCalled("home", func(a *v1alpha1.AutomaticPeering) {
		a.Group = &v1alpha1.PeeringGroup{Name: "garage", SecretRef: v1alpha1.SecretKey{Name: "garage"}}
	})
	at.make(t, p)
	at.found(t)
	hint := "milan-" + at.milan.ID.Short()
	says := func(want string, calls int) {
		t.Helper()
		told := len(at.said)
		at.clock.Pass(laterAfter + endpointPause)
		at.looks(t)
		if said := at.Attempt(peertest.PeerCalled(t, at.Client, hint)); said.Reason != want || len(at.calls) != calls {
			t.Errorf("the attempt is %+v after %d calls, want %s after %d", said, len(at.calls), want, calls)
		}
		if now := at.said[told:]; len(now) == 0 || now[0] != hint {
			t.Errorf("what is new of it is not shown: %q", now)
		}
	}
	at.err = peering.Errorf(peering.ReasonGroupUnknown, "no")
	says("GroupUnknown", 1)
	at.looks(t)
	if len(at.calls) != 1 {
		t.Fatalf("calls %q", at.calls)
	}
	// Its policy is there now, and asks.
	at.err = peering.Errorf(peering.ReasonGroupSecretMismatch, "no")
	at.GroupProofStarted("garage", at.milan.ID)
	says("GroupSecretMismatch", 2)
	for range 3 { // a cluster that asks all the time is not dialled more often
		at.GroupProofStarted("garage", at.milan.ID)
		at.GroupProofStarted("attic", at.milan.ID)
		at.GroupProofStarted("garage", peertest.SightedID(9))
		at.clock.Pass(time.Minute)
		at.looks(t)
	}
	if len(at.calls) != 2 {
		t.Errorf("calls %q", at.calls)
	}
	at.remove(t, p)
	says("", 2)
}

// A cluster that starts may not have its policy yet, or not have read it.
func TestGroupThatIsUnknownOnceCausesNoWarning(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers []peering.Reason
		want    int
	}{
		"it knows the group at the next try":       {[]peering.Reason{peering.ReasonGroupUnknown, ""}, 0},
		"it does not":                              {[]peering.Reason{peering.ReasonGroupUnknown, peering.ReasonGroupUnknown}, 1},
		"it never does":                            {[]peering.Reason{peering.ReasonGroupUnknown, peering.ReasonGroupUnknown, peering.ReasonGroupUnknown}, 1},
		"it was away in between, and is new again": {[]peering.Reason{peering.ReasonGroupUnknown, peering.ReasonPeerUnreachable, peering.ReasonGroupUnknown}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newAutomaticTest(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "garage"}, Data: map[string][]byte{"secret": []byte("0123456789abcdef")}})
			at.make(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) {
				a.Group = &v1alpha1.PeeringGroup{Name: "garage", SecretRef: v1alpha1.SecretKey{Name: "garage"}}
			}))
			at.found(t)
			for i, reason := range tc.answers {
				at.err = nil
				if reason != "" {
					at.err = peering.Errorf(reason, "no")
				}
				at.clock.Pass(retryMax)
				at.looks(t)
				if len(at.calls) != i+1 {
					t.Fatalf("calls %q", at.calls)
				}
			}
			warnings := 0
			for _, e := range at.events.Events {
				if e == "Warning GroupUnknown" {
					warnings++
				}
			}
			if warnings != 2*tc.want { // of the policy and of the cluster
				t.Errorf("events %q", at.events.Events)
			}
		})
	}
}

// A Secret that has other keys is likely the right one with a misnamed key.
func TestMissingKeyOfAGroupSecretNamesTheKeysThatThereAre(t *testing.T) {
	t.Parallel()
	many := map[string][]byte{"empty": nil}
	for i := range 20 {
		many[fmt.Sprintf("k%02d%s", i, strings.Repeat("x", 240))] = []byte("0123456789abcdef")
	}
	for name, tc := range map[string]struct {
		key  string
		data map[string][]byte
		want string
	}{
		"the default is secret":   {data: map[string][]byte{"secret": []byte("0123456789abcdef")}},
		"another key":             {key: "psk", data: map[string][]byte{"psk": []byte("0123456789abcdef")}},
		"a misnamed one":          {data: map[string][]byte{"token": []byte("hush-hush-hush-hush"), "b": []byte("x")}, want: `under key secret: its keys are "b", "token"`},
		"one that reads as words": {data: map[string][]byte{"other": []byte("hush-hush-hush-hush")}, want: `under key secret: its only key is "other"`},
		"none":                    {data: map[string][]byte{"secret": nil}, want: "under key secret: it is empty"},
		"many":                    {data: many, want: `"k03` + strings.Repeat("x", 240) + `" and 16 more`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newAutomaticTest(t)
			at.make(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "garage"}, Data: tc.data})
			s := at.groupSecret(t.Context(), "home", v1alpha1.SecretKey{Name: "garage", Key: tc.key})
			if s.err != nil || (s.problem.Reason == "") != (tc.want == "") || !strings.HasSuffix(s.problem.Message, tc.want) || strings.Contains(s.problem.Message, "hush") {
				t.Errorf("got %+v, %v, want %q", s.problem, s.err, tc.want)
			}
		})
	}
}

// TestGroupOfTwoPoliciesTrustsNoCluster lets two policies name the same group, with the same
// secret: a run does not show which of them is meant.
func TestGroupOfTwoPoliciesTrustsNoCluster(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t)
	named := func(name, group string) *v1alpha1.PeeringPolicy {
		return policyCalled(name, func(a *v1alpha1.AutomaticPeering) {
			a.Group = &v1alpha1.PeeringGroup{Name: group, SecretRef: v1alpha1.SecretKey{Name: "garage"}}
		})
	}
	second := named("second", "garage")
	at.make(t, named("first", "garage"), second, named("third", "attic"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "garage"}, Data: map[string][]byte{"secret": []byte("0123456789abcdef")}})
	at.looks(t)
	for policy, want := range map[string]string{"first": "DuplicateGroup", "second": "DuplicateGroup", "third": "Peering"} {
		var p v1alpha1.PeeringPolicy
		if err := at.Client.Get(t.Context(), client.ObjectKey{Name: policy}, &p); err != nil {
			t.Fatal(err)
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAutomatic); c == nil || c.Reason != want {
			t.Errorf("the condition of policy %s is %+v, want %s", policy, c, want)
		}
	}
	if policy, _, err := at.GroupSecret(t.Context(), "garage"); peering.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Errorf("policy %s judges: %v", policy, err)
	}
	at.remove(t, second)
	if policy, _, err := at.GroupSecret(t.Context(), "garage"); policy != "first" || err != nil {
		t.Errorf("policy %s judges: %v", policy, err)
	}
}

func TestTokenMakesAPeerOfAPolicyAPersons(t *testing.T) {
	t.Parallel()
	inGroup := func(a *v1alpha1.AutomaticPeering) { a.Group = &v1alpha1.PeeringGroup{Name: "garage"} }
	home, elsewhere := policyCalled("home", inGroup), policyCalled("other", inGroup)
	at := newAutomaticTest(t, home, elsewhere)
	if err := at.Admit(t.Context(), at.milan.ID, at.milan.Info, "home", "garage"); err != nil {
		t.Fatal(err)
	}
	if got := store.MadeByPolicy(peertest.PeerCalled(t, at.Client, "milan")); got != "home" {
		t.Fatalf("it is of policy %q", got)
	}
	// Once more changes nothing of it.
	if err := at.Admit(t.Context(), at.milan.ID, at.milan.Info, "other", "garage"); err != nil || store.MadeByPolicy(peertest.PeerCalled(t, at.Client, "milan")) != "home" {
		t.Errorf("again: %v, %+v", err, peertest.PeerCalled(t, at.Client, "milan"))
	}
	if _, err := store.AddPeer(t.Context(), at.Client, nil, at.milan.ID, at.milan.Info, ""); err != nil {
		t.Fatal(err)
	}
	if fc := peertest.PeerCalled(t, at.Client, "milan"); store.MadeByPolicy(fc) != "" || fc.Spec.TrustBundle == "" {
		t.Errorf("it is %+v", fc)
	}
	// It proves the group's secret once more: there is nothing to add, and nothing to report.
	before := peertest.PeerCalled(t, at.Client, "milan")
	told := len(at.events.Events)
	if err := at.Admit(t.Context(), at.milan.ID, at.milan.Info, "home", "garage"); err != nil || len(at.events.Events) != told {
		t.Errorf("a person's peer that proves the secret: %v, %q", err, at.events.Events)
	}
	if fc := peertest.PeerCalled(t, at.Client, "milan"); fc.ResourceVersion != before.ResourceVersion {
		t.Errorf("it was written: %+v", fc)
	}
	at.looks(t)
	at.clock.Pass(2 * policyGone)
	at.looks(t)
	if got, want := at.objects(t), []string{"peer milan"}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

// TestPeerThatLeftIsForgotten has a policy's peer be uninstalled.
func TestPeerThatLeftIsForgotten(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
	at.found(t)
	at.looks(t)
	name := peerOfTest(t, at)
	fc := peertest.PeerCalled(t, at.Client, name)
	fc.Status.Sightings = nil
	left := store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, trust.ReasonForgottenByPeer, "")
	left.LastTransitionTime = metav1.NewTime(at.clock.Now())
	meta.SetStatusCondition(&fc.Status.Conditions, left)
	if err := at.Client.Status().Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	at.looks(t)
	at.clock.Pass(leftAfter - 2*time.Second)
	at.looks(t)
	if fc := peertest.PeerCalled(t, at.Client, name); !fc.DeletionTimestamp.IsZero() {
		t.Fatal("it is forgotten before its time")
	}
	at.clock.Pass(3 * time.Second)
	at.looks(t)
	if fc := peertest.PeerCalled(t, at.Client, name); fc.DeletionTimestamp.IsZero() || fc.Annotations[v1alpha1.AnnotationAutomaticEnded] == "" {
		t.Errorf("it stays for good: %+v", fc.ObjectMeta)
	}
}

// TestPeerThatVanishedIsForgotten has a peer on first use be away for good, and a contract
// with it that its ForeignCluster does not show yet.
func TestPeerThatVanishedIsForgotten(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
	at.found(t)
	at.looks(t)
	at.clock.Pass(laterAfter)
	at.looks(t)
	name := peerOfTest(t, at)
	fc := peertest.PeerCalled(t, at.Client, name)
	if fc.Status.Sightings = nil; fc.Spec.TrustBundle == "" {
		t.Fatal("it is not trusted")
	}
	if err := at.Client.Status().Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	agreed := peertest.ContractWith(at.milan, "agreed", v1alpha1.ContractConsumer)
	at.make(t, agreed)
	at.looks(t)
	at.clock.Pass(vanishedAfter)
	at.looks(t)
	if fc := peertest.PeerCalled(t, at.Client, name); !fc.DeletionTimestamp.IsZero() {
		t.Fatal("it is forgotten although a contract is in force")
	}
	at.remove(t, agreed)
	at.looks(t)
	if fc := peertest.PeerCalled(t, at.Client, name); fc.DeletionTimestamp.IsZero() || fc.Annotations[v1alpha1.AnnotationAutomaticEnded] == "" {
		t.Errorf("it stays for good: %+v", fc.ObjectMeta)
	}
}

// TestPolicyReportsWhatAPersonForgot has a policy list a cluster that a person forgot.
func TestPolicyReportsWhatAPersonForgot(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
	if err := at.Forgotten.Add(t.Context(), at.milan.ID); err != nil {
		t.Fatal(err)
	}
	at.found(t)
	at.looks(t)
	fc := peertest.PeerCalled(t, at.Client, peerOfTest(t, at))
	if got := at.Attempt(fc); got.Reason != "ForgottenHere" || !slices.Equal(at.said, []string{fc.Name}) || len(at.calls) > 0 {
		t.Fatalf("the attempt is %+v, of %q, after calls %q", got, at.said, at.calls)
	}
	if err := at.Forgotten.Remove(t.Context(), at.milan.ID); err != nil {
		t.Fatal(err)
	}
	at.looks(t)
	if fc := peertest.PeerCalled(t, at.Client, peerOfTest(t, at)); store.Pending(fc) {
		t.Errorf("it is not trusted after a person took it back: %+v", at.Attempt(fc))
	}
}

// peerOfTest returns the name of the one ForeignCluster that there is.
func peerOfTest(t *testing.T, at *automaticTest) string {
	t.Helper()
	var list v1alpha1.ForeignClusterList
	if err := at.Client.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d foreign clusters: %v", len(list.Items), err)
	}
	return list.Items[0].Name
}

// TestAdministratorsDecideDuringACall lets an administrator undo what a call is for, while it lasts.
func TestAdministratorsDecideDuringACall(t *testing.T) {
	t.Parallel()
	policies := map[string]func(*v1alpha1.AutomaticPeering){
		"group": func(a *v1alpha1.AutomaticPeering) { a.Group = &v1alpha1.PeeringGroup{Name: "garage"} },
		"first": func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true },
	}
	for by, edit := range policies {
		for name, during := range map[string]func(*testing.T, *automaticTest, *v1alpha1.PeeringPolicy){
			"nothing":               nil,
			"the policy is deleted": func(t *testing.T, at *automaticTest, p *v1alpha1.PeeringPolicy) { at.remove(t, p) },
			"the policy peers by itself no longer": func(t *testing.T, at *automaticTest, p *v1alpha1.PeeringPolicy) {
				before := p.DeepCopy()
				p.Spec.Automatic = nil
				if err := at.Client.Patch(t.Context(), p, client.MergeFrom(before)); err != nil {
					t.Error(err)
				}
			},
			"it is not found any more": func(t *testing.T, at *automaticTest, _ *v1alpha1.PeeringPolicy) {
				at.remove(t, &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "milan-" + at.milan.ID.Short()}})
			},
			"it is forgotten": func(t *testing.T, at *automaticTest, _ *v1alpha1.PeeringPolicy) {
				if err := at.Forgotten.Add(t.Context(), at.milan.ID); err != nil {
					t.Error(err)
				}
			},
		} {
			t.Run(by+": "+name, func(t *testing.T) {
				t.Parallel()
				at := newAutomaticTest(t)
				p := policyCalled("home", edit)
				if p.Spec.Automatic.Group != nil {
					p.Spec.Automatic.Group.SecretRef = v1alpha1.SecretKey{Name: "garage"}
					at.make(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "garage"}, Data: map[string][]byte{"secret": []byte("0123456789abcdef")}})
				}
				at.make(t, p)
				at.found(t)
				if during != nil {
					at.during = func() { during(t, at, p) }
				}
				at.looks(t)
				at.clock.Pass(laterAfter) // its ID may be the higher one
				at.looks(t)
				if len(at.calls) != 1 {
					t.Fatalf("calls %q", at.calls)
				}
				trusted := slices.ContainsFunc(peertest.PeersOf(t, at.Client), func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.TrustBundle != "" })
				// That it is no longer found is not a decision, and the other side may trust this one by now.
				if trusted != (during == nil || name == "it is not found any more") {
					t.Errorf("trusted %t; there are %q", trusted, at.objects(t))
				}
			})
		}
	}
}

// unreadable is a client that cannot read Secrets.
type unreadable struct{ client.Client }

func (c unreadable) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Secret); ok {
		return errors.New("no")
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func TestUnreadableSecretStopsItsPolicyOnly(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, policyCalled("a", func(a *v1alpha1.AutomaticPeering) {
		a.Group = &v1alpha1.PeeringGroup{Name: "garage", SecretRef: v1alpha1.SecretKey{Name: "garage"}}
	}), policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
	at.Direct = unreadable{at.Direct}
	policies := at.rules(t.Context(), []v1alpha1.PeeringPolicy{
		*policyCalled("a", func(a *v1alpha1.AutomaticPeering) { a.Group = &v1alpha1.PeeringGroup{Name: "garage"} }),
		*policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }),
	})
	if len(policies) != 2 || policies[0].problem.Reason != "SecretUnreadable" || policies[1].problem.Reason != "" {
		t.Errorf("the policies are %+v", policies)
	}
}

func TestForbiddenEndpointIsNotDialled(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
	at.MayDial = func(endpoint string) bool { return endpoint != "192.0.2.1:7443" }
	at.found(t)
	at.looks(t)
	at.clock.Pass(laterAfter)
	at.looks(t)
	if said := at.Attempt(peertest.PeerCalled(t, at.Client, "milan-"+at.milan.ID.Short())); len(at.calls) > 0 || said.Reason != "PeerUnreachable" {
		t.Errorf("calls %q; the attempt is %+v", at.calls, said)
	}
}

// TestFirstUseRefusesAClusterWithAnothersName lets Milan send its name only when it is called.
func TestFirstUseRefusesAClusterWithAnothersName(t *testing.T) {
	t.Parallel()
	rome := peertest.TrustedPeer("rome", 1, "192.0.2.99:7443")
	at := newAutomaticTest(t, &rome, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
	at.milan.Info.Name = "Rome"
	at.found(t)
	at.looks(t)
	at.clock.Pass(laterAfter)
	at.looks(t)
	if len(at.calls) != 1 {
		t.Errorf("calls %q", at.calls)
	}
	if got, want := at.objects(t), []string{"peer milan-" + at.milan.ID.Short(), "peer rome"}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

// TestFirstUseReportsWhyItDeclinesAnImpostor lets Milan imitate a peer, by what is found of it, by
// what it sends of itself, or once it is called.
func TestFirstUseReportsWhyItDeclinesAnImpostor(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string]int{"found": 0, "introduced": 0, "called": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := map[string]string{"found": "192.0.2.1:7443"}[name]
			rome := peertest.TrustedPeer("rome", 1, endpoint)
			at := newAutomaticTest(t, &rome, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))
			at.milan.Info.Name = "Rome"
			at.found(t)
			hint := "milan-" + at.milan.ID.Short()
			if name == "introduced" {
				fc := peertest.PeerCalled(t, at.Client, hint)
				fc.Status.Introduction = &v1alpha1.Introduction{Name: "Rome", Code: "042917", Bundle: at.milan.Info.PEM()}
				if err := at.Client.Status().Update(t.Context(), fc); err != nil {
					t.Fatal(err)
				}
			}
			at.looks(t)
			at.clock.Pass(laterAfter)
			at.looks(t)
			said := at.Attempt(peertest.PeerCalled(t, at.Client, hint))
			for _, word := range []string{"policy home", "peer rome", "another key", "entente approve", "entente deny"} {
				if said.Reason != "Impostor" || !strings.Contains(said.Message, word) {
					t.Errorf("the attempt is %+v, without %q", said, word)
				}
			}
			var p v1alpha1.PeeringPolicy
			if err := at.Client.Get(t.Context(), client.ObjectKey{Name: "home"}, &p); err != nil {
				t.Fatal(err)
			}
			if p.Status.Automatic == nil || p.Status.Automatic.Pending != 1 || p.Status.Automatic.Peers != 0 {
				t.Errorf("the policy's status is %+v", p.Status.Automatic)
			}
			at.clock.Pass(time.Minute)
			at.looks(t)
			told := 0
			for _, e := range at.events.Events {
				if e == "Warning Impostor" {
					told++
				}
			}
			if told != 2 || len(at.calls) != calls { // of the policy and of the cluster
				t.Errorf("%d events, of %q, after calls %q", told, at.events.Events, at.calls)
			}
		})
	}
}

// TestFirstUseSurvivesALostSighting has the hint of Milan go while it is called: it is
// trusted all the same, as it trusts this cluster by now, under the same conditions.
func TestFirstUseSurvivesALostSighting(t *testing.T) {
	t.Parallel()
	many := func(n int) (out []client.Object) {
		for i := range n {
			fc := byPolicy(fmt.Sprint("c", i), 10+i, "home", byFirstUse)
			fc.Spec.Endpoints = []string{"192.0.2.77:7443"}
			out = append(out, &fc)
		}
		return out
	}
	rome := peertest.TrustedPeer("rome", 1, "192.0.2.99:7443")
	for name, tt := range map[string]struct {
		others []client.Object
		says   string
		want   bool
	}{
		"it is trusted":                  {nil, "milan", true},
		"it takes another's name":        {[]client.Object{&rome}, "Rome", false},
		"there is room for one":          {many(maxFirstUse - 1), "milan", true},
		"the last place went to another": {many(maxFirstUse - 1), "milan", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := newAutomaticTest(t, append(tt.others, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse = true }))...)
			at.milan.Info.Name = tt.says
			at.found(t)
			at.during = func() {
				at.remove(t, &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "milan-" + at.milan.ID.Short()}})
				if strings.HasPrefix(name, "the last place") {
					last := byPolicy("last", 9, "home", byFirstUse)
					last.Spec.Endpoints = nil
					at.make(t, &last)
				}
			}
			at.looks(t)
			at.clock.Pass(laterAfter)
			at.looks(t)
			fc := store.Known(peertest.PeersOf(t, at.Client), at.milan.ID)
			if len(at.calls) != 1 || (fc != nil && fc.Spec.TrustBundle != "") != tt.want {
				t.Errorf("after calls %q it is %+v", at.calls, fc)
			}
		})
	}
}

// TestForgottenClusterDoesNotAskItselfBack has a cluster that a person forgot introduce
// itself as if its administrator asked, where policies would trust it at once.
func TestForgottenClusterDoesNotAskItselfBack(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t)
	at.make(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.ClusterIDs = []string{string(at.milan.ID)} }))
	if err := at.Forgotten.Add(t.Context(), at.milan.ID); err != nil {
		t.Fatal(err)
	}
	answers := &trust.Introductions{Client: at.Client, Cache: at.Client, Forgotten: at.Forgotten, Self: peertest.OwnID, Rand: rand.Reader, Now: at.clock.Now}
	for _, requested := range []bool{true, false} { // the second time as it does by itself
		at.clock.Pass(time.Minute)
		if _, err := peertest.IntroduceAs(t, answers, at.milan, "x", requested); err != nil {
			t.Fatal(err)
		}
		at.looks(t)
		if fc := peertest.PeerCalled(t, at.Client, "milan"); !store.Pending(fc) || fc.Status.Introduction == nil {
			t.Errorf("requested %t: no administrator here decided, and it is %+v", requested, fc)
		}
	}
	groups := &trust.Groups{Cache: at.Client, Forgotten: at.Forgotten}
	if err := groups.Join(t.Context(), "garage", "192.0.2.1:7443", at.milan.ID); peering.ReasonOf(err) != peering.ReasonTrustForgotten {
		t.Errorf("by a group: %v", err)
	}
}

func TestPlanUse(t *testing.T) {
	t.Parallel()
	peer := byPolicy("c1", 1, "home", byFirstUse)
	meta.SetStatusCondition(&peer.Status.Conditions, store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Approved", ""))
	rule := func(edit func(*v1alpha1.AutomaticPeering)) []policyRule {
		r := firstUse("home")
		edit(&r.AutomaticPeering)
		return []policyRule{r}
	}
	as := func(d v1alpha1.Direction) []policyRule {
		return rule(func(a *v1alpha1.AutomaticPeering) { a.Direction = d })
	}
	request := func(edit func(*v1alpha1.PeeringRequest)) v1alpha1.PeeringRequest {
		r := requestFor(&as("Both")[0], &peer)
		edit(r)
		return *r
	}
	same := func(*v1alpha1.PeeringRequest) {}
	trustedAt := meta.FindStatusCondition(peer.Status.Conditions, v1alpha1.ConditionTrusted).LastTransitionTime.Time
	ended := func(after time.Duration) func(*v1alpha1.PeeringRequest) {
		return func(r *v1alpha1.PeeringRequest) {
			c := store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, store.ReasonEndedByProvider, "")
			c.LastTransitionTime = metav1.NewTime(trustedAt.Add(after))
			r.Status.Conditions = []metav1.Condition{c}
		}
	}
	for name, tt := range map[string]struct {
		rules    []policyRule
		requests []v1alpha1.PeeringRequest
		want     string
	}{
		"Provide asks for nothing": {as("Provide"), nil, ""},
		"to use is":                {as("Consume"), nil, "create automatic-c1"},
		"it is there":              {as("Both"), []v1alpha1.PeeringRequest{request(same)}, ""},
		"the provider ended it":    {as("Both"), []v1alpha1.PeeringRequest{request(ended(time.Minute))}, ""},
		"it did, and trust is new": {as("Both"), []v1alpha1.PeeringRequest{request(ended(-time.Minute))}, "remove automatic-c1"},
		"it asks for other things": {rule(func(a *v1alpha1.AutomaticPeering) { a.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "1"} }), []v1alpha1.PeeringRequest{request(same)}, "change automatic-c1"},
		"Provide from now on":      {as("Provide"), []v1alpha1.PeeringRequest{request(same)}, "remove automatic-c1"},
		"it is a person's":         {as("Provide"), []v1alpha1.PeeringRequest{request(func(r *v1alpha1.PeeringRequest) { r.Labels = nil })}, ""},
		"it is a copy of one":      {as("Provide"), []v1alpha1.PeeringRequest{request(func(r *v1alpha1.PeeringRequest) { r.Name = "mine" })}, ""},
		"a person's is in its way": {as("Both"), []v1alpha1.PeeringRequest{request(func(r *v1alpha1.PeeringRequest) { r.Labels = nil })}, "left alone PeeringRequest automatic-c1"},
		"of a peer that is gone":   {as("Both"), []v1alpha1.PeeringRequest{request(same), request(func(r *v1alpha1.PeeringRequest) { r.Name = "automatic-c2" })}, "remove automatic-c2"},
	} {
		plan := planUse(useInput{rules: tt.rules, all: []v1alpha1.ForeignCluster{peer}, requests: tt.requests, gone: func(string) (bool, time.Time) { return true, now }})
		var got []string
		for _, r := range plan.create {
			got = append(got, "create "+r.Name)
		}
		for _, c := range plan.change {
			got = append(got, "change "+c.request.Name)
		}
		for _, r := range plan.remove {
			got = append(got, "remove "+r.Name)
		}
		for _, l := range plan.leftAlone {
			got = append(got, "left alone "+l.what)
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s: %q, want %q", name, text, tt.want)
		}
	}
}

// forgets is an API server where an administrator forgets a cluster right before it is looked up to be stored.
type forgets struct {
	client.Client
	lists  int
	forget func()
}

func (c *forgets) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.ForeignClusterList); ok {
		if c.lists++; c.lists == 2 {
			c.forget()
		}
	}
	return c.Client.List(ctx, list, opts...)
}

func TestClusterForgottenWhileItIsStoredIsNotTrusted(t *testing.T) {
	t.Parallel()
	at := newAutomaticTest(t)
	at.make(t, policyCalled("home", func(a *v1alpha1.AutomaticPeering) { a.ClusterIDs = []string{string(at.milan.ID)} }))
	at.found(t)
	at.Direct = &forgets{Client: at.Client, forget: func() {
		err := errors.Join(at.Forgotten.Add(t.Context(), at.milan.ID), at.Client.DeleteAllOf(t.Context(), &v1alpha1.ForeignCluster{}))
		if err != nil {
			t.Error(err)
		}
	}}
	err := at.admit(t.Context(), store.Introduction{ID: at.milan.ID, Info: at.milan.Info, Policy: "home", By: string(byClusterID)})
	if peering.ReasonOf(err) != peering.ReasonConflict {
		t.Errorf("it is stored: %v", err)
	}
	if left := peertest.PeersOf(t, at.Client); len(left) > 0 {
		t.Errorf("it left %+v", left)
	}
}

// A policy says whether it is valid, also one that does not peer by itself and selects no cluster.
func TestAPolicySaysWhetherItIsValid(t *testing.T) {
	t.Parallel()
	p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "plain", Generation: 3}}
	at := newAutomaticTest(t, p)
	at.valid = store.Condition(v1alpha1.ConditionValid, metav1.ConditionFalse, "Invalid", "limits: cpuu")
	if _, err := at.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := at.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionValid)
	if c == nil || c.Status != metav1.ConditionFalse || c.Message != "limits: cpuu" || c.ObservedGeneration != 3 {
		t.Errorf("its condition is %+v", c)
	}
}
