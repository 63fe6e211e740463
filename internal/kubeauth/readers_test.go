package kubeauth

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// get asks a handler for the metrics and returns the status.
func get(t *testing.T, h http.Handler, authorization string) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
	r.Header.Set("Authorization", authorization)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func TestMetricsNeedAnAuthorisedToken(t *testing.T) {
	t.Parallel()
	asked, down := 0, false
	c := fake.NewClientset()
	c.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		asked++
		review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if down || review.Spec.Token == "no-response" {
			return true, nil, errors.New("down")
		}
		review.Status.Authenticated = review.Spec.Token != "forged"
		review.Status.User = authenticationv1.UserInfo{Username: review.Spec.Token, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
		return true, review, nil
	})
	c.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		asked++
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		of := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && review.Spec.Groups[0] == "g" && review.Spec.Extra["k"][0] == "v" && of.Path == "/metrics" && of.Verb == "get"
		return true, review, nil
	})
	served := 0
	h := MetricsReaders(c, slog.New(slog.DiscardHandler), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served++
		w.WriteHeader(http.StatusOK)
	}))
	for header, want := range map[string]int{
		"": http.StatusUnauthorized, "Bearer ": http.StatusUnauthorized, "Basic prometheus": http.StatusUnauthorized,
		"Bearer forged": http.StatusUnauthorized, "Bearer pod": http.StatusForbidden,
		"Bearer no-response": http.StatusServiceUnavailable, "Bearer prometheus": http.StatusOK, "bearer prometheus": http.StatusOK,
	} {
		if got := get(t, h, header); got != want {
			t.Errorf("%q: got %d, want %d", header, got, want)
		}
	}
	// A regular reader costs the API server nothing, and is served while that is down.
	down = true
	before := asked
	for range 100 {
		if got := get(t, h, "Bearer prometheus"); got != http.StatusOK {
			t.Fatalf("again: %d", got)
		}
	}
	if got := get(t, h, "Bearer pod"); got != http.StatusForbidden {
		t.Errorf("a reader that was refused lately gets %d", got)
	}
	if asked != before || served != 102 {
		t.Errorf("the API server was asked %d times more, metrics were served %d times", asked-before, served)
	}
}

func TestReadersOfMetricsAreBounded(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset()
	leave := make(chan struct{})
	var hangs atomic.Bool
	c.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if !hangs.Load() {
			review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "prometheus"}}
			return true, review, nil
		}
		<-leave
		return true, nil, errors.New("down")
	})
	c.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = true
		return true, review, nil
	})
	h := MetricsReaders(c, slog.New(slog.DiscardHandler), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if got := get(t, h, "Bearer known"); got != http.StatusOK {
		t.Fatalf("got %d", got)
	}
	hangs.Store(true)
	done := make(chan int, maxReaders+1)
	for range maxReaders + 1 {
		go func() { done <- get(t, h, "Bearer x") }()
	}
	// The API server does not respond yet, so the first response is to the reader beyond the limit.
	if got := <-done; got != http.StatusTooManyRequests {
		t.Errorf("one more got %d", got)
	}
	if got := get(t, h, "Bearer known"); got != http.StatusOK {
		t.Errorf("a reader that was allowed lately gets %d, because others wait", got)
	}
	close(leave)
	for range maxReaders {
		if got := <-done; got != http.StatusServiceUnavailable {
			t.Errorf("got %d", got)
		}
	}
}
