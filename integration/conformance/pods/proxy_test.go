package pods

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/entente-dev/entente/api/v1alpha1"
	. "github.com/entente-dev/entente/integration/e2e"
)

// behind returns a kubeconfig of a proxy before a cluster's API server, which changes two things that
// the suites take for granted. Kubernetes' tests take no node with a taint for a place of pods: its
// lists of nodes have virtual ones without theirs, which all pods of offloaded namespaces tolerate. A virtual
// kubelet of the project's own is a pod with the name of its node, and its tests ask this pod, which
// would be in podNamespace, for what a kubelet measures: it asks the node.
func behind(t *testing.T, s *Side, node, podNamespace string) string {
	t.Helper()
	transport, err := rest.TransportFor(s.REST)
	OK(t, err)
	server, err := url.Parse(s.REST.Host)
	OK(t, err)
	pod := "/api/v1/namespaces/" + podNamespace + "/pods/https:" + node + ":10250/proxy/"
	listening := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			if rest, asPod := strings.CutPrefix(r.In.URL.Path, pod); asPod {
				r.Out.URL.Path, r.Out.URL.RawPath = "/api/v1/nodes/"+node+"/proxy/"+rest, ""
			}
		},
		ModifyResponse: untainted,
	})
	t.Cleanup(listening.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters[s.Name] = &clientcmdapi.Cluster{Server: listening.URL}
	config.AuthInfos[s.Name] = &clientcmdapi.AuthInfo{}
	config.Contexts[s.Name] = &clientcmdapi.Context{Cluster: s.Name, AuthInfo: s.Name}
	config.CurrentContext = s.Name
	file := filepath.Join(t.TempDir(), "kubeconfig")
	OK(t, clientcmd.WriteToFile(*config, file))
	return file
}

// untainted takes the taint of virtual nodes out of a list of nodes.
func untainted(r *http.Response) error {
	if r.Request.URL.Path != "/api/v1/nodes" || r.Request.Method != http.MethodGet || r.StatusCode != http.StatusOK ||
		r.Request.URL.Query().Get("watch") != "" || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") || r.Header.Get("Content-Encoding") != "" {
		return nil
	}
	var list corev1.NodeList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		return err
	}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		spec.Taints = slices.DeleteFunc(spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.TaintVirtualNode })
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	r.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}
