# capstan alone, without a shell and not as root. docker-compose.yml uses it.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
ARG COMMIT=unknown
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-X main.release=$VERSION -X main.commit=$COMMIT" -o /out/capstan ./cmd/capstan

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/capstan /capstan
ENTRYPOINT ["/capstan"]
