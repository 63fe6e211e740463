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

func TestWebhookKeepsDaemonSetsOffVirtualNodes(t *testing.T) {
	t.Parallel()
	const (
		all     = `{"metadata":{"name":"d"},"spec":{"template":{"spec":{"tolerations":[{"operator":"Exists"}]}}}}`
		zoned   = `{"metadata":{"name":"d"},"spec":{"template":{"spec":{"tolerations":[{"operator":"Exists"}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]},{"matchExpressions":[{"key":"zone","operator":"Exists"}]},{"matchExpressions":[{"key":"entente.dev/virtual-node","operator":"Exists"}]}]}}}}}}}`
		other   = `{"metadata":{"name":"d"},"spec":{"template":{"spec":{"tolerations":[{"key":"x","operator":"Exists"}]}}}}`
		kept    = `{"key":"entente.dev/virtual-node","operator":"DoesNotExist"}`
		patched = `[{"op":"add","path":"/spec/template/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[` + kept + `]}]}}}}]`
		terms   = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/"
	)
	for name, tc := range map[string]struct {
		operation, object, old, extra string
		patch                         string
		kept                          bool
	}{
		"a new one":                        {operation: "CREATE", object: all, patch: patched, kept: true},
		"a dry run":                        {operation: "CREATE", object: all, extra: `,"dryRun":true`, patch: patched},
		"one that tolerates other taints":  {operation: "CREATE", object: other},
		"one whose template is new":        {operation: "UPDATE", object: all, old: other, patch: patched, kept: true},
		"one whose template stays":         {operation: "UPDATE", object: all, old: all},
		"one whose former state is absent": {operation: "UPDATE", object: all, old: `[1]`},
		"its alternatives": {operation: "CREATE", object: zoned, kept: true, patch: `[{"op":"add","path":"` + terms + `0/matchExpressions","value":[` + kept + `]},` +
			`{"op":"add","path":"` + terms + `1/matchExpressions/-","value":` + kept + `}]`},
		"a malformed one": {operation: "CREATE", object: `{"spec":1}`},
		"one deleted":     {operation: "DELETE", object: all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.old == "" {
				tc.old = "null"
			}
			var told []string
			w := &Webhook{Log: slog.New(slog.DiscardHandler), KeptOff: func(namespace, name string) { told = append(told, namespace+"/"+name) }}
			out := httptest.NewRecorder()
			w.ServeHTTP(out, httptest.NewRequest(http.MethodPost, Path, strings.NewReader(
				`{"request":{"uid":"u","kind":{"group":"apps","version":"v1","kind":"DaemonSet"},"namespace":"logs","operation":"`+tc.operation+`","object":`+tc.object+`,"oldObject":`+tc.old+tc.extra+`}}`)))
			var got admissionv1.AdmissionReview
			if err := json.Unmarshal(out.Body.Bytes(), &got); err != nil || got.Response == nil || !got.Response.Allowed {
				t.Fatalf("got %d %s, want it allowed", out.Code, out.Body)
			}
			if patch := string(got.Response.Patch); patch != tc.patch {
				t.Errorf("the patch is %s, want %s", patch, tc.patch)
			}
			if tc.kept != (len(told) == 1 && told[0] == "logs/d") || !tc.kept && len(told) > 0 {
				t.Errorf("reported are %v", told)
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
