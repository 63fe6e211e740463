package homeapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// optedIn returns a pod abroad and the NamespaceOffloading of its namespace that let it ask.
func optedIn() (*corev1.Pod, *v1alpha1.NamespaceOffloading) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u1", Annotations: map[string]string{v1alpha1.AnnotationHomeAPI: "true"}},
		Spec:       corev1.PodSpec{ServiceAccountName: "web"},
	}
	offloading := &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName},
		Spec:       v1alpha1.NamespaceOffloadingSpec{HomeAPI: v1alpha1.HomeAPIAllowed},
	}
	return pod, offloading
}

func TestAPodAbroadCallsItsHomeOnlyWhereAllOptedIn(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		change func(*facts)
		want   peering.Reason
	}{
		"pod and namespace opted in":               {func(*facts) {}, ""},
		"it is about to end, and still runs":       {func(f *facts) { f.pod.DeletionTimestamp = &metav1.Time{Time: now.Add(time.Second)} }, ""},
		"no such pod runs at the caller":           {func(f *facts) { f.pod = nil }, peering.ReasonPodUnknown},
		"it succeeded":                             {func(f *facts) { f.pod.Status.Phase = corev1.PodSucceeded }, peering.ReasonPodUnknown},
		"it failed":                                {func(f *facts) { f.pod.Status.Phase = corev1.PodFailed }, peering.ReasonPodUnknown},
		"it was deleted, its time is over":         {func(f *facts) { f.pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Second)} }, peering.ReasonPodUnknown},
		"it does not ask":                          {func(f *facts) { f.pod.Annotations = nil }, peering.ReasonPolicyRefused},
		"its annotation has another value":         {func(f *facts) { f.pod.Annotations[v1alpha1.AnnotationHomeAPI] = "True" }, peering.ReasonPolicyRefused},
		"its namespace is not offloaded":           {func(f *facts) { f.offloading = nil }, peering.ReasonPolicyRefused},
		"its namespace does not set it":            {func(f *facts) { f.offloading.Spec.HomeAPI = "" }, peering.ReasonPolicyRefused},
		"its namespace denies":                     {func(f *facts) { f.offloading.Spec.HomeAPI = v1alpha1.HomeAPIDenied }, peering.ReasonPolicyRefused},
		"offloading ends":                          {func(f *facts) { f.offloading.DeletionTimestamp = &metav1.Time{Time: now} }, peering.ReasonPolicyRefused},
		"it is of kube-system":                     {func(f *facts) { f.pod.Namespace = "kube-system" }, peering.ReasonPolicyRefused},
		"it is of another namespace of the system": {func(f *facts) { f.pod.Namespace = "kube-node-lease" }, peering.ReasonPolicyRefused},
		"it is of the agent's own namespace":       {func(f *facts) { f.pod.Namespace = "entente-system" }, peering.ReasonPolicyRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := facts{own: "entente-system", now: now}
			f.pod, f.offloading = optedIn()
			tc.change(&f)
			var got peering.Reason
			if err, ok := errors.AsType[*peering.Error](f.refusal()); ok {
				got = err.Reason
			}
			if got != tc.want {
				t.Errorf("refused for %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAPodCannotSetItsIdentity(t *testing.T) {
	t.Parallel()
	h := http.Header{
		"Authorization": {"Bearer x"}, "Impersonate-User": {"admin"}, "Impersonate-Extra-Scopes": {"all"}, "X-Remote-User": {"admin"},
		"X-Remote-Extra-Scopes": {"all"}, "X-Forwarded-For": {"192.0.2.1"}, "Cookie": {"a=b"}, "impersonate-group": {"system:masters"}, "AUTHORIZATION": {"Basic x"},
		"Accept": {"application/json"}, "Content-Type": {"application/json"}, "User-Agent": {"x"},
	}
	clean(h)
	want := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}, "User-Agent": {"x"}}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzNoHeaderIdentifiesTheCaller(f *testing.F) {
	f.Add("Impersonate-User", "admin")
	f.Add("authorization", "Bearer x")
	f.Add("X-Remote-Group", "system:masters")
	f.Fuzz(func(t *testing.T, name, value string) {
		h := http.Header{name: {value}}
		h.Add(name, value)
		clean(h)
		for left := range h {
			// What an API server reads, however it was written.
			lower := strings.ToLower(left)
			if lower == "authorization" || strings.HasPrefix(lower, "impersonate-") || strings.HasPrefix(lower, "x-remote-") {
				t.Errorf("%q is left", left)
			}
		}
	})
}

func TestOnlyRequestsOfTheAPIPass(t *testing.T) {
	t.Parallel()
	request := func(method, target string, headers ...string) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), method, target, http.NoBody)
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		return r
	}
	relative := request(http.MethodGet, "/api")
	relative.URL.Path = "api"
	for name, tc := range map[string]struct {
		request *http.Request
		want    peering.Reason
	}{
		"a list":                    {request(http.MethodGet, "/api/v1/pods?watch=true"), ""},
		"a connection that stays":   {request(http.MethodGet, "/api", "Connection", "keep-alive"), ""},
		"an upgrade":                {request(http.MethodPost, "/api/v1/namespaces/a/pods/b/exec", "Connection", "Upgrade", "Upgrade", "SPDY/3.1"), peering.ReasonPolicyRefused},
		"an upgrade in a list":      {request(http.MethodGet, "/api", "Connection", "keep-alive, upGrade"), peering.ReasonPolicyRefused},
		"an upgrade without a word": {request(http.MethodGet, "/api", "Upgrade", "websocket"), peering.ReasonPolicyRefused},
		"a proxy":                   {request(http.MethodConnect, "example.com:443"), peering.ReasonRequestInvalid},
		"another server":            {request(http.MethodGet, "https://example.com/api"), peering.ReasonRequestInvalid},
		"a path without a slash":    {relative, peering.ReasonRequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got peering.Reason
			if err, ok := errors.AsType[*peering.Error](checkRequest(tc.request)); ok {
				got = err.Reason
			}
			if got != tc.want {
				t.Errorf("refused for %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAccountsKeepToTheirLimits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := accountOfPod()
	for range maxStreamsOfPod {
		if err := a.open(now); err != nil {
			t.Fatal(err)
		}
	}
	if a.open(now) == nil {
		t.Error("one connection too many was opened")
	}
	for range requestBurstOfPod {
		if err := a.begin(now); err != nil {
			t.Fatal(err)
		}
		a.end()
	}
	if a.begin(now) == nil {
		t.Error("more requests at once than the burst")
	}
	if err := a.begin(now.Add(time.Second)); err != nil {
		t.Errorf("a second later: %v", err)
	}
	a.end()
	for range maxStreamsOfPod {
		a.close(now)
	}
	// A pod that closes and opens connections all the time does not get a new account.
	if a.over(now.Add(accountLife)) || !a.over(now.Add(accountLife+time.Second)) {
		t.Error("an account lasts for another time than it should")
	}
}

func TestARequestThatItsPodCancelledIsNotRefused(t *testing.T) {
	t.Parallel()
	pod, offloading := optedIn()
	for want, givesUp := range map[string]bool{"cancelled": true, "refused": false} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := fake.NewClientset()
		client.PrependReactor("create", "serviceaccounts", func(ktesting.Action) (bool, runtime.Object, error) {
			if givesUp {
				cancel()
			}
			return true, nil, errors.New("no token was made")
		})
		h, err := NewHome(HomeConfig{
			REST: &rest.Config{Host: "https://192.0.2.1"}, Client: client, Namespace: "entente-system", Log: slog.New(slog.DiscardHandler),
			Pod:        func(peering.ClusterID, string, string) *corev1.Pod { return pod },
			Offloading: func(string) *v1alpha1.NamespaceOffloading { return offloading },
		})
		if err != nil {
			t.Fatal(err)
		}
		c := &conn{provider: "office", contract: "c-1", uid: "u1", pod: accountOfPod(), peer: accountOfPeer()}
		h.serve(httptest.NewRecorder(), httptest.NewRequestWithContext(context.WithValue(ctx, connKey{}, c), http.MethodGet, "/api", http.NoBody))
		if n := counted(t, h.Collectors(), "entente_home_api_requests_total", []string{want, "office"}); n != 1 {
			t.Errorf("%v requests are %s, want 1", n, want)
		}
	}
}
