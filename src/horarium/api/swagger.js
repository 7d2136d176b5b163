// Starts Swagger UI on the document of this server. Served as a file of its own: the page allows no inline script.
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: "docs/openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    tryItOutEnabled: false,
    displayRequestDuration: true,
    docExpansion: "list",
    validatorUrl: null,
    presets: [SwaggerUIBundle.presets.apis],
    layout: "BaseLayout",
  });
});
