package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// registry has one image, under whatever name it is pulled.
type registry struct {
	user, password, latest string
	blobs                  map[string]blob
}

type blob struct {
	kind string
	text []byte
}

// part describes a blob in a manifest.
type part struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

// Registry is a registry from which those who have the password pull an image, under any name. Nothing is pushed to it.
func Registry(im Image, user, password string) (http.Handler, error) {
	r := &registry{user: user, password: password, blobs: map[string]blob{}}
	manifest := struct {
		SchemaVersion int    `json:"schemaVersion"`
		MediaType     string `json:"mediaType"`
		Config        part   `json:"config"`
		Layers        []part `json:"layers"`
	}{SchemaVersion: 2, MediaType: manifestType}
	var digests []string
	for _, l := range im.Layers {
		text, _, err := l.archive()
		if err != nil {
			return nil, err
		}
		p := r.add(layerType, text)
		manifest.Layers, digests = append(manifest.Layers, p), append(digests, p.Digest)
	}
	config, err := im.config(digests)
	if err != nil {
		return nil, err
	}
	manifest.Config = r.add(configType, config)
	text, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	r.latest = r.add(manifestType, text).Digest
	return r, nil
}

func (r *registry) add(kind string, text []byte) part {
	sum := sha256.Sum256(text)
	p := part{kind, "sha256:" + hex.EncodeToString(sum[:]), len(text)}
	r.blobs[p.Digest] = blob{kind, text}
	return p
}

// ServeHTTP implements http.Handler: of the OCI distribution specification, what a pull takes.
func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if user, password, _ := q.BasicAuth(); user != r.user || password != r.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	if q.URL.Path == "/v2/" {
		return
	}
	wanted := q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:]
	if strings.Contains(q.URL.Path, "/manifests/") && !strings.HasPrefix(wanted, "sha256:") {
		wanted = r.latest
	}
	b, has := r.blobs[wanted]
	if !has {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Type", b.kind)
	w.Header().Set("Docker-Content-Digest", wanted)
	_, _ = w.Write(b.text)
}
