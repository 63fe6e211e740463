package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/entente-dev/entente/peering"
)

// Envelopes are the signed envelopes of files.
type Envelopes struct {
	contracts, statements []peering.Envelope
}

// errNoEvidence says that this command does not understand a document.
var errNoEvidence = errors.New("this is neither a signed envelope (DSSE) nor a Contract with one")

// Read adds the contents of a file: envelopes, Contract resources, output of the API and of
// `contract show`, one after the other or in lists, JSON or YAML.
func (ev *Envelopes) Read(raw []byte) error {
	dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for documents := 0; ; documents++ {
		var doc json.RawMessage
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			if documents == 0 {
				return errNoEvidence
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: it is neither JSON nor YAML", errNoEvidence)
		}
		if len(bytes.TrimSpace(doc)) == 0 || bytes.Equal(doc, []byte("null")) {
			documents--
			continue
		}
		if err := ev.add(doc, 0); err != nil {
			return err
		}
	}
}

func (ev *Envelopes) add(doc json.RawMessage, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("%w: lists are nested too deep", errNoEvidence)
	}
	var list []json.RawMessage
	if json.Unmarshal(doc, &list) == nil {
		return ev.addAll(list, depth)
	}
	var shape struct {
		Payload  *string `json:"payload"`
		Envelope string  `json:"envelope"`
		Spec     struct {
			Envelope string `json:"envelope"`
		} `json:"spec"`
		Status struct {
			Statements []struct {
				Envelope string `json:"envelope"`
			} `json:"statements"`
		} `json:"status"`
		Contract json.RawMessage   `json:"contract"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(doc, &shape); err != nil {
		return errNoEvidence
	}
	switch {
	case shape.Payload != nil:
		return ev.envelope(doc)
	case shape.Envelope != "":
		return ev.envelope([]byte(shape.Envelope))
	case shape.Spec.Envelope != "":
		if err := ev.envelope([]byte(shape.Spec.Envelope)); err != nil {
			return err
		}
		for _, s := range shape.Status.Statements {
			if err := ev.envelope([]byte(s.Envelope)); err != nil {
				return err
			}
		}
		return nil
	case shape.Contract != nil:
		return ev.add(shape.Contract, depth+1)
	case len(shape.Items) > 0:
		return ev.addAll(shape.Items, depth)
	}
	return errNoEvidence
}

func (ev *Envelopes) addAll(list []json.RawMessage, depth int) error {
	if len(list) == 0 {
		return errNoEvidence
	}
	for _, doc := range list {
		if err := ev.add(doc, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (ev *Envelopes) envelope(raw []byte) error {
	if len(ev.contracts)+len(ev.statements) == MaxEnvelopes {
		return fmt.Errorf("more than %d envelopes", MaxEnvelopes)
	}
	e, err := peering.ParseEnvelope(raw)
	if err != nil {
		return err
	}
	switch e.PayloadType {
	case peering.PayloadType:
		ev.contracts = append(ev.contracts, e)
	case peering.StatementPayloadType:
		ev.statements = append(ev.statements, e)
	default:
		return fmt.Errorf("NOT valid: unknown payload type %.140q", e.PayloadType)
	}
	return nil
}
