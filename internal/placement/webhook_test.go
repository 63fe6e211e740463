package placement

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// answer calls the webhook, in a cluster whose namespace "shop" is Remote and whose "broken"
// cannot be read.
func answer(method, path, body string) *httptest.ResponseRecorder {
	w := &Webhook{Log: slog.New(slog.DiscardHandler), Offloading: func(_ context.Context, namespace string) (*v1alpha1.NamespaceOffloading, error) {
		switch namespace {
		case "shop":
			return &v1alpha1.NamespaceOffloading{Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyRemote}}, nil
		case "broken":
			return nil, errors.New("no response")
		}
		return nil, nil
	}}
	out := httptest.NewRecorder()
	w.ServeHTTP(out, httptest.NewRequest(method, path, strings.NewReader(body)))
	return out
}

func review(namespace, kind, operation, object string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"","version":"v1","kind":"` + kind +
		`"},"namespace":"` + namespace + `","operation":"` + operation + `","object":` + object + `}}`
}

func TestWebhookAllowsAllAndChangesWhatItCanDecide(t *testing.T) {
	t.Parallel()
	const pod = `{"spec":{"containers":[{"name":"c"}],"fieldOfTomorrow":{"a":1}}}`
	const want = `[{"op":"add","path":"/spec/tolerations","value":[{"key":"node.kubernetes.io/not-ready","operator":"Equal","effect":"NoExecute"},{"key":"node.kubernetes.io/unreachable","operator":"Equal","effect":"NoExecute"},` +
		`{"key":"entente.dev/virtual-node","operator":"Exists","effect":"NoSchedule"}]},` +
		`{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"entente.dev/virtual-node","operator":"In","values":["true"]}]}]}}}}]`
	for name, tc := range map[string]struct{ body, patch string }{
		"a pod":                        {review("shop", "Pod", "CREATE", pod), want},
		"a pod elsewhere":              {review("other", "Pod", "CREATE", pod), ""},
		"a namespace that is not read": {review("broken", "Pod", "CREATE", pod), ""},
		"an update":                    {review("shop", "Pod", "UPDATE", pod), ""},
		"something else":               {review("shop", "Secret", "CREATE", pod), ""},
		"a malformed pod":              {review("shop", "Pod", "CREATE", `{"spec":[1]}`), ""},
		"no pod":                       {review("shop", "Pod", "CREATE", `null`), ""},
		"a malformed owner":            {review("shop", "Pod", "CREATE", `{"metadata":{"ownerReferences":"x"}}`), ""},
		"one that is placed already":   {review("shop", "Pod", "CREATE", `{"spec":{"nodeName":"n"}}`), ""},
		"one without an operation":     {review("shop", "Pod", "", pod), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := answer(http.MethodPost, Path, tc.body)
			var got admissionv1.AdmissionReview
			if err := json.Unmarshal(out.Body.Bytes(), &got); err != nil || out.Code != http.StatusOK {
				t.Fatalf("got %d %s", out.Code, out.Body)
			}
			if got.Kind != "AdmissionReview" || got.Response == nil || got.Response.UID != "u-1" || !got.Response.Allowed || got.Request != nil {
				t.Errorf("got %s, want it allowed", out.Body)
			}
			if patch := string(got.Response.Patch); patch != tc.patch {
				t.Errorf("the patch is %s, want %s", patch, tc.patch)
			}
		})
	}
}

func TestWebhookRefusesMalformedReviews(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method, path, body string
		want               int
	}{
		"another method": {http.MethodGet, Path, "", http.StatusNotFound},
		"another path":   {http.MethodPost, "/metrics", "{}", http.StatusNotFound},
		"nothing":        {http.MethodPost, Path, "", http.StatusBadRequest},
		"no JSON":        {http.MethodPost, Path, "\x00\x01", http.StatusBadRequest},
		"no request":     {http.MethodPost, Path, `{"kind":"AdmissionReview"}`, http.StatusBadRequest},
		"much too deep":  {http.MethodPost, Path, strings.Repeat(`{"request":`, 20_000), http.StatusBadRequest},
		"much too large": {http.MethodPost, Path, `{"kind":"` + strings.Repeat("x", maxReview) + `"}`, http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out := answer(tc.method, tc.path, tc.body); out.Code != tc.want {
				t.Errorf("got %d %.200s, want %d", out.Code, out.Body, tc.want)
			}
		})
	}
}

func FuzzWebhook(f *testing.F) {
	f.Add(`{"spec":{"containers":[{"name":"c"}]}}`)
	f.Add(`{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{},{"matchFields":[{}]}]}}}}}`)
	f.Add(`{"spec":{"volumes":[{"projected":{"sources":[{}]}}],"tolerations":[{}]}}`)
	f.Fuzz(func(t *testing.T, object string) {
		if !json.Valid([]byte(object)) {
			t.Skip()
		}
		out := answer(http.MethodPost, Path, review("shop", "Pod", "CREATE", object))
		var got admissionv1.AdmissionReview
		if err := json.Unmarshal(out.Body.Bytes(), &got); err != nil || out.Code != http.StatusOK || !got.Response.Allowed {
			t.Errorf("got %d %s", out.Code, out.Body)
		}
	})
}
