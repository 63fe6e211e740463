package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func newPeersClient(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.ForeignCluster{}).WithObjects(objects...).Build()
}

// cluster is another cluster and its ClusterInfo.
func cluster(t *testing.T, name string) (*identity.Identity, identity.ClusterInfo) {
	t.Helper()
	id, err := identity.Generate(start)
	if err != nil {
		t.Fatal(err)
	}
	return id, identity.ClusterInfo{Name: name, Endpoints: here, Bundle: id.TrustBundle()}
}

func get(t *testing.T, c client.Client, name string) *v1alpha1.ForeignCluster {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &fc); err != nil {
		t.Fatal(err)
	}
	return &fc
}

func names(t *testing.T, c client.Client) []string {
	t.Helper()
	var list v1alpha1.ForeignClusterList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, fc := range list.Items {
		out = append(out, fc.Name)
	}
	return out
}

func TestTokensAreListedWithoutSecretsAndRevoked(t *testing.T) {
	t.Parallel()
	tokens, clock := newTokens(t)
	var ids []string
	for range 3 {
		token, err := tokens.Mint(t.Context(), self, here, 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
		if len(ids) == 1 {
			if _, err := tokens.Redeem(t.Context(), token.ID, token.Secret, other); err != nil {
				t.Fatal(err)
			}
		}
	}
	list, err := tokens.List(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%d tokens, error %v", len(list), err)
	}
	for i, token := range list {
		if i > 0 && list[i-1].ID >= token.ID {
			t.Error("they are not sorted")
		}
		if want := map[bool]peering.ClusterID{true: other}[token.ID == ids[0]]; token.RedeemedBy != want || !token.Expires.Equal(start.Add(5*time.Minute)) {
			t.Errorf("token %s is %+v", token.ID, token)
		}
	}
	if err := tokens.Revoke(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{ids[1], "never", ""} {
		if err := tokens.Revoke(t.Context(), id); wire.ReasonOf(err) != peering.ReasonTokenUnknown {
			t.Errorf("revoking %q: %v", id, err)
		}
	}
	clock.pass(5 * time.Minute)
	if err := tokens.Revoke(t.Context(), ids[2]); wire.ReasonOf(err) != peering.ReasonTokenUnknown {
		t.Errorf("revoking one that expired: %v", err)
	}
	if list, err := tokens.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v are listed after they expired, error %v", list, err)
	}
}

func TestTokenIsInvalidOnceItsClusterIsForgottenOrItExpired(t *testing.T) {
	t.Parallel()
	tokens, clock := newTokens(t)
	token, err := tokens.Mint(t.Context(), self, here, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	redeem := func() (bool, error) { return tokens.Redeem(t.Context(), token.ID, token.Secret, other) }
	if again, err := redeem(); again || err != nil {
		t.Fatalf("first: %t, %v", again, err)
	}
	if again, err := redeem(); !again || err != nil {
		t.Errorf("again: %t, %v", again, err)
	}
	if err := tokens.Forget(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	clock.pass(59 * time.Second)
	if again, err := redeem(); !again || err != nil {
		t.Errorf("after another was forgotten: %t, %v", again, err)
	}
	clock.pass(time.Second)
	if _, err := redeem(); wire.ReasonOf(err) != peering.ReasonTokenInvalid {
		t.Errorf("after it expired: %v", err)
	}
	clock.pass(-time.Minute)
	if err := tokens.Forget(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := redeem(); wire.ReasonOf(err) != peering.ReasonTokenInvalid {
		t.Errorf("after its cluster was forgotten: %v", err)
	}
}

func TestANewTokenEndsADenialAndAnOldOneDoesNot(t *testing.T) {
	t.Parallel()
	c := newPeersClient(t)
	milan, info := cluster(t, "milan")
	if _, err := AddPeer(t.Context(), c, nil, milan.ID(), info, ""); err != nil {
		t.Fatal(err)
	}
	fc := get(t, c, "milan")
	if fc.Status.Source != v1alpha1.SourceToken || !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted) || Pending(fc) {
		t.Errorf("joined: %+v", fc.Status)
	}
	fc.Spec.Decision, fc.Spec.TrustBundle = v1alpha1.DecisionDenied, ""
	if err := c.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	if _, err := AddPeerAgain(t.Context(), c, milan.ID(), info); wire.ReasonOf(err) != peering.ReasonTokenInvalid {
		t.Errorf("a token that was used before: %v", err)
	}
	if fc := get(t, c, "milan"); fc.Spec.Decision != v1alpha1.DecisionDenied || fc.Spec.TrustBundle != "" {
		t.Errorf("after it: %+v", fc.Spec)
	}
	if _, err := AddPeer(t.Context(), c, nil, milan.ID(), info, ""); err != nil {
		t.Fatal(err)
	}
	if fc := get(t, c, "milan"); fc.Spec.Decision != "" || fc.Spec.TrustBundle != info.PEM() {
		t.Errorf("after a new token: %+v", fc.Spec)
	}
	if _, err := AddPeerAgain(t.Context(), c, milan.ID(), info); err != nil {
		t.Errorf("asking again after a response that was lost: %v", err)
	}
}

func TestRevocationByAPeerHoldsUntilANewToken(t *testing.T) {
	t.Parallel()
	c := newPeersClient(t)
	milan, info := cluster(t, "milan")
	stranger, _ := cluster(t, "x")
	if _, err := AddPeer(t.Context(), c, nil, milan.ID(), info, ""); err != nil {
		t.Fatal(err)
	}
	if fc, err := RecordRevoked(t.Context(), c, stranger.ID(), "x", start); fc != nil || err != nil {
		t.Errorf("a cluster that is not known: %v, %v", fc, err)
	}
	fc, err := RecordRevoked(t.Context(), c, milan.ID(), "we moved\n", start)
	if err != nil || fc == nil {
		t.Fatal(fc, err)
	}
	fc = get(t, c, "milan")
	trusted := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	if !Revoked(fc) || fc.Spec.TrustBundle == "" || !trusted.LastTransitionTime.Time.Equal(start) {
		t.Errorf("revoked: %+v", fc.Status)
	}
	for _, want := range []string{"we moved", "entente join"} {
		if !strings.Contains(trusted.Message, want) {
			t.Errorf("%q does not contain %q", trusted.Message, want)
		}
	}
	if fc, err := RecordRevoked(t.Context(), c, milan.ID(), "again", start.Add(time.Hour)); fc != nil || err != nil {
		t.Errorf("hearing it again is news: %v, %v", fc, err)
	}
	if _, err := AddPeer(t.Context(), c, nil, milan.ID(), info, ""); err != nil || Revoked(get(t, c, "milan")) {
		t.Errorf("after a new token it is still revoked: %v", err)
	}
}

func TestIntroduceKeepsOrDecidesAnIntroduction(t *testing.T) {
	t.Parallel()
	milan, info := cluster(t, "milan")
	id := string(milan.ID())
	named := func(name string, edit func(*v1alpha1.ForeignCluster)) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: id}}
		if edit != nil {
			edit(fc)
		}
		return fc
	}
	pending := func(name string) *v1alpha1.ForeignCluster {
		return named(name, func(fc *v1alpha1.ForeignCluster) {
			fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
			fc.Status.Source = v1alpha1.SourceIntroduction
		})
	}
	squatter := pending("office")
	squatter.Spec.ClusterID = string(third)
	owned := named("office", nil)
	owned.Spec.ClusterID = string(third)
	for name, tc := range map[string]struct {
		have    []client.Object
		do      Introduction
		reason  peering.Reason
		called  string
		trusts  bool
		pending bool
	}{
		"a stranger is known by its own name, and not trusted": {called: "milan", pending: true},
		"a name that is taken is extended":                     {have: []client.Object{func() client.Object { o := owned.DeepCopy(); o.Name = "milan"; return o }()}, called: "milan-" + milan.ID().Short(), pending: true},
		"who was named and approved is trusted":                {have: []client.Object{named("m", func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionApproved })}, called: "m", trusts: true},
		"who was named only is known":                          {have: []client.Object{named("m", nil)}, called: "m"},
		"who was denied is refused":                            {have: []client.Object{named("m", func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied })}, reason: peering.ReasonTrustDenied, called: "m"},
		"approving it ends a denial":                           {have: []client.Object{named("m", func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied })}, do: Introduction{Approve: true}, called: "m", trusts: true},
		"a wanted name is used":                                {do: Introduction{Name: "office"}, called: "office", pending: true},
		"a stranger's choice of name yields to a wanted one":   {have: []client.Object{pending("milan")}, do: Introduction{Name: "office"}, called: "office", pending: true},
		"and so does a stranger that took the name":            {have: []client.Object{squatter}, do: Introduction{Name: "office"}, called: "office", pending: true},
		"a cluster's name does not":                            {have: []client.Object{owned}, do: Introduction{Name: "office"}, reason: peering.ReasonPeerNameTaken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var objects []client.Object
			for _, o := range tc.have {
				objects = append(objects, o.DeepCopyObject().(client.Object))
			}
			c := newPeersClient(t, objects...)
			tc.do.ID, tc.do.Info, tc.do.Code, tc.do.Time = milan.ID(), info, "042917", start
			got, err := Introduce(t.Context(), c, tc.do)
			if wire.ReasonOf(err) != tc.reason {
				t.Fatalf("error %v, want %q", err, tc.reason)
			}
			if tc.reason == peering.ReasonTrustDenied && !strings.Contains(err.Error(), "this cluster itself denied that one: `entente approve "+string(milan.ID())+"` here") {
				t.Errorf("error %v does not say which side denied", err)
			}
			if tc.reason != "" {
				if tc.called != "" && get(t, c, tc.called).Spec.TrustBundle != "" {
					t.Error("it is trusted all the same")
				}
				return
			}
			if got != tc.called {
				t.Fatalf("it is called %s, want %s", got, tc.called)
			}
			fc := get(t, c, got)
			if (fc.Spec.TrustBundle != "") != tc.trusts || Pending(fc) != tc.pending || fc.Spec.ClusterID != id {
				t.Errorf("spec %+v, pending %t", fc.Spec, Pending(fc))
			}
			want := &v1alpha1.Introduction{Time: metav1.NewTime(start), Code: "042917", Name: "milan", Bundle: info.PEM()}
			if diff := cmp.Diff(want, fc.Status.Introduction); diff != "" {
				t.Errorf("introduction (-want +got):\n%s", diff)
			}
			for _, other := range names(t, c) {
				if other != got && get(t, c, other).Spec.ClusterID == id {
					t.Errorf("there is a second one, %s", other)
				}
			}
		})
	}
}

func TestAPendingIntroductionBecomesTrustedByAToken(t *testing.T) {
	t.Parallel()
	c := newPeersClient(t)
	milan, info := cluster(t, "milan")
	if _, err := Introduce(t.Context(), c, Introduction{ID: milan.ID(), Info: info, Code: "1", Time: start}); err != nil {
		t.Fatal(err)
	}
	if name, err := AddPeer(t.Context(), c, nil, milan.ID(), info, "office"); err != nil || name != "office" {
		t.Fatalf("it is called %s, %v", name, err)
	}
	if got := names(t, c); len(got) != 1 {
		t.Errorf("there are %v", got)
	}
	if fc := get(t, c, "office"); fc.Status.Introduction != nil || fc.Status.Source != v1alpha1.SourceToken || Pending(fc) {
		t.Errorf("status %+v", fc.Status)
	}
}

func TestABundleIsUpdatedOnlyForward(t *testing.T) {
	t.Parallel()
	zero, _ := cluster(t, "milan")
	roll := func(id *identity.Identity, after time.Duration) *identity.Identity {
		t.Helper()
		next, err := id.Rollover(start.Add(after), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	one := roll(zero, 0)
	two := roll(one, time.Hour)
	fork := roll(zero, 0) // what a thief of the old key would make
	stranger, strangers := cluster(t, "x")
	says := func(id *identity.Identity) identity.ClusterInfo {
		return identity.ClusterInfo{Name: "milan", Endpoints: here, Bundle: id.TrustBundle()}
	}
	for name, tc := range map[string]struct {
		held, next *identity.Identity
		edit       func(*v1alpha1.ForeignCluster)
		want       peering.Reason
	}{
		"after a rollover":                   {held: zero, next: one},
		"after two, one of which was missed": {held: zero, next: two},
		"the same again":                     {held: one, next: one},
		"not back":                           {held: one, next: zero, want: peering.ReasonBundleInvalid},
		"not to another branch":              {held: one, next: fork, want: peering.ReasonBundleInvalid},
		"not to a longer one either":         {held: one, next: roll(fork, time.Hour), want: peering.ReasonBundleInvalid},
		"not of who is trusted no longer":    {held: zero, next: one, edit: func(fc *v1alpha1.ForeignCluster) { fc.Spec.TrustBundle = "" }, want: peering.ReasonPeerNotTrusted},
		"not of who was just denied":         {held: zero, next: one, edit: func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied }, want: peering.ReasonPeerNotTrusted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newPeersClient(t)
			if _, err := AddPeer(t.Context(), c, nil, zero.ID(), says(tc.held), ""); err != nil {
				t.Fatal(err)
			}
			fc := get(t, c, "milan")
			if tc.edit != nil {
				tc.edit(fc)
				if err := c.Update(t.Context(), fc); err != nil {
					t.Fatal(err)
				}
			}
			before := get(t, c, "milan").Spec.TrustBundle
			err := UpdateBundle(t.Context(), c, zero.ID(), says(tc.next))
			if wire.ReasonOf(err) != tc.want {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			after := get(t, c, "milan").Spec.TrustBundle
			switch {
			case tc.want != "" && after != before:
				t.Error("the bundle changed all the same")
			case tc.want == "" && after != says(tc.next).PEM():
				t.Error("the bundle is not the new one")
			}
		})
	}
	c := newPeersClient(t)
	if err := UpdateBundle(t.Context(), c, stranger.ID(), strangers); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("of a stranger: %v", err)
	}
	if got := names(t, c); len(got) != 0 {
		t.Errorf("there are %v", got)
	}
}

func TestTrustedObjectRepresentsItsCluster(t *testing.T) {
	t.Parallel()
	at := func(name string, age time.Duration, edit func(*v1alpha1.ForeignCluster)) v1alpha1.ForeignCluster {
		fc := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(start.Add(-age))}}
		fc.Spec.ClusterID = string(other)
		if edit != nil {
			edit(&fc)
		}
		return fc
	}
	trusted := func(fc *v1alpha1.ForeignCluster) { fc.Spec.TrustBundle = "PEM" }
	introduced := func(fc *v1alpha1.ForeignCluster) {
		fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
	}
	for name, tc := range map[string]struct {
		items []v1alpha1.ForeignCluster
		want  string
	}{
		"the one that is trusted":                    {[]v1alpha1.ForeignCluster{at("a", time.Hour, nil), at("b", 0, trusted)}, "b"},
		"otherwise the one that was written by hand": {[]v1alpha1.ForeignCluster{at("a", time.Hour, introduced), at("b", 0, nil)}, "b"},
		"else the older one":                         {[]v1alpha1.ForeignCluster{at("a", 0, nil), at("b", time.Hour, nil)}, "b"},
		"else the first by name":                     {[]v1alpha1.ForeignCluster{at("b", 0, nil), at("a", 0, nil)}, "a"},
		"and none without objects":                   {nil, ""},
		"one without an ID represents no cluster":    {[]v1alpha1.ForeignCluster{at("a", 0, func(fc *v1alpha1.ForeignCluster) { fc.Spec.ClusterID = "" })}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if fc := Known(tc.items, other); fc != nil {
				got = fc.Name
			}
			if got != tc.want {
				t.Errorf("it is %q, want %q", got, tc.want)
			}
		})
	}
	if Known([]v1alpha1.ForeignCluster{{}}, "") != nil {
		t.Error("no cluster has an object")
	}
}

func TestOnlyConflictsOfTheAPIServerAreRetried(t *testing.T) {
	t.Parallel()
	tries := 0
	conflict := func() error {
		tries++
		return peering.Errorf(peering.ReasonConflict, "not a conflict of the API server")
	}
	if err := retryOnConflict(conflict); err == nil || tries != 1 {
		t.Errorf("%d tries, %v", tries, err)
	}
	if err := retryOnConflict(func() error { return errors.New("x") }); err == nil {
		t.Error("an error is lost")
	}
}

// TestTrustedClusterKeepsItsSightings has a cluster that discovery found be trusted, which
// uses the name that it gives itself: its sightings are known all the time.
func TestTrustedClusterKeepsItsSightings(t *testing.T) {
	t.Parallel()
	seen := []v1alpha1.Sighting{{Source: v1alpha1.SourceLAN, Location: "eth0", Node: "n1", Endpoints: []string{"192.0.2.1:7443"}, LastSeenTime: metav1.NewTime(start.Truncate(time.Second).Local())}}
	for name, trust := range map[string]func(c client.Client, id peering.ClusterID, info identity.ClusterInfo) (string, error){
		"a policy": func(c client.Client, id peering.ClusterID, info identity.ClusterInfo) (string, error) {
			return Introduce(t.Context(), c, Introduction{ID: id, Info: info, Time: start, Policy: "home", By: "FirstUse"})
		},
		"a token": func(c client.Client, id peering.ClusterID, info identity.ClusterInfo) (string, error) {
			return AddPeer(t.Context(), c, nil, id, info, "")
		},
		"one of many tokens": func(c client.Client, id peering.ClusterID, info identity.ClusterInfo) (string, error) {
			return AddPeer(t.Context(), c, c, id, info, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newPeersClient(t)
			self, info := cluster(t, "office")
			if _, made, err := Sight(t.Context(), c, self.ID(), "office", seen); !made || err != nil {
				t.Fatalf("made %t: %v", made, err)
			}
			called, err := trust(c, self.ID(), info)
			if err != nil || called != "office" {
				t.Fatalf("it is called %q: %v", called, err)
			}
			if diff := cmp.Diff(seen, get(t, c, "office").Status.Sightings); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
