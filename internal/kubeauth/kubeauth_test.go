package kubeauth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestBearerTokenTakesOneToken(t *testing.T) {
	for name, tc := range map[string]struct {
		header []string
		want   string
		ok     bool
	}{
		"no header":           {nil, "", true},
		"a token":             {[]string{"Bearer abc"}, "abc", true},
		"another case":        {[]string{"bearer  abc "}, "abc", true},
		"the largest token":   {[]string{"Bearer " + strings.Repeat("a", MaxBearerToken)}, strings.Repeat("a", MaxBearerToken), true},
		"a larger one":        {[]string{"Bearer " + strings.Repeat("a", MaxBearerToken+1)}, "", false},
		"two headers":         {[]string{"Bearer a", "Bearer b"}, "", false},
		"two in one":          {[]string{"Bearer a, Bearer b"}, "", false},
		"another scheme":      {[]string{"Basic YTpi"}, "", false},
		"a scheme alone":      {[]string{"Bearer "}, "", false},
		"an empty header":     {[]string{""}, "", false},
		"a token and newline": {[]string{"Bearer a\r\nX: y"}, "", false},
	} {
		got, err := BearerToken(http.Header{"Authorization": tc.header})
		if _, unknown := errors.AsType[UnknownError](err); got != tc.want || unknown == tc.ok {
			t.Errorf("%s: got %.20q, %v", name, got, err)
		}
	}
}

func TestReviewsAreCachedOnlyWithCache(t *testing.T) {
	for cache, want := range map[bool]int{true: 1, false: 2} {
		tokens, grants := 0, 0
		client := fake.NewClientset()
		client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
			tokens++
			review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
			review.Status.Authenticated = review.Spec.Token == "alice"
			review.Status.User = authenticationv1.UserInfo{Username: review.Spec.Token, Groups: []string{"devs"}}
			return true, review, nil
		})
		client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
			grants++
			review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
			review.Status.Allowed = review.Spec.ResourceAttributes.Verb == "get"
			return true, review, nil
		})
		r := New(Config{Client: client, Log: slog.New(slog.DiscardHandler), Cache: cache})
		req := (&http.Request{Header: http.Header{"Authorization": {"Bearer alice"}}}).WithContext(t.Context())
		// A certificate that does not count leaves it to the token.
		req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
		for range 2 {
			user, err := r.Authenticate(req)
			if diff := cmp.Diff([]string{"devs", AuthenticatedGroup}, user.Groups); err != nil || diff != "" {
				t.Fatalf("%v (-want +got)\n%s", err, diff)
			}
			for verb, want := range map[string]bool{"get": true, "delete": false} {
				if got, err := r.Allowed(t.Context(), user, authorizationv1.ResourceAttributes{Verb: verb}); err != nil || got != want {
					t.Errorf("%s: %v, %v", verb, got, err)
				}
			}
		}
		if tokens != want || grants != 2*want {
			t.Errorf("cache %v: %d tokens and %d permissions were reviewed", cache, tokens, grants)
		}
		req.Header.Set("Authorization", "Bearer mallory")
		for range 2 {
			if _, err := r.Authenticate(req); err == nil {
				t.Error("a token that the API server does not know counts")
			}
		}
		if tokens != want+2 {
			t.Errorf("cache %v: %d tokens were reviewed: a refusal is kept", cache, tokens)
		}
	}
}
