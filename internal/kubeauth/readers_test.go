package kubeauth

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMetricsNeedAnAuthorisedToken(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset()
	c.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if review.Spec.Token == "nobody-answers" {
			return true, nil, errors.New("down")
		}
		review.Status.Authenticated = review.Spec.Token != "forged"
		review.Status.User = authenticationv1.UserInfo{Username: review.Spec.Token, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
		return true, review, nil
	})
	c.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		of := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && review.Spec.Groups[0] == "g" && review.Spec.Extra["k"][0] == "v" && of.Path == "/metrics" && of.Verb == "get"
		return true, review, nil
	})
	h := MetricsReaders(c, slog.New(slog.DiscardHandler), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for header, want := range map[string]int{
		"": http.StatusUnauthorized, "Bearer ": http.StatusUnauthorized, "Basic prometheus": http.StatusUnauthorized,
		"Bearer forged": http.StatusUnauthorized, "Bearer pod": http.StatusForbidden,
		"Bearer nobody-answers": http.StatusServiceUnavailable, "Bearer prometheus": http.StatusOK, "bearer prometheus": http.StatusOK,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Authorization", header)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: got %d %s, want %d", header, w.Code, w.Body, want)
		}
	}
}

func TestReadersOfMetricsAreBounded(t *testing.T) {
	t.Parallel()
	c := fake.NewClientset()
	leave := make(chan struct{})
	c.PrependReactor("create", "tokenreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-leave
		return true, nil, errors.New("down")
	})
	h := MetricsReaders(c, slog.New(slog.DiscardHandler), http.NotFoundHandler())
	read := func() int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Authorization", "Bearer x")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	done := make(chan int, maxReaders+1)
	for range maxReaders + 1 {
		go func() { done <- read() }()
	}
	// The API server answers nobody yet, so the first answer is the one too many.
	if got := <-done; got != http.StatusTooManyRequests {
		t.Errorf("one more got %d", got)
	}
	close(leave)
	for range maxReaders {
		if got := <-done; got != http.StatusServiceUnavailable {
			t.Errorf("got %d", got)
		}
	}
}
